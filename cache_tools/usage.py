"""How much a store holds, by target and by family."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass

from tkc.cache import Miss, Store
from tkc.model import Stage


@dataclass(frozen=True, slots=True)
class Usage:
    """Bytes and counts of a store.

    Attributes:
        artifacts: complete compiles.
        stages: kept outputs of single stages, for incremental builds.
        blobs, blob_bytes: distinct contents.
        by_target, by_family: ``name → (artifacts, bytes)``; bytes shared between artifacts count in each.
        damaged: manifests that could not be read.
    """

    artifacts: int
    stages: int
    blobs: int
    blob_bytes: int
    by_target: dict[str, tuple[int, int]]
    by_family: dict[str, tuple[int, int]]
    damaged: int


def usage(store: Store) -> Usage:
    """Count what `store` holds. Damaged entries are counted, not raised."""
    by_target: dict[str, list[int]] = defaultdict(lambda: [0, 0])
    by_family: dict[str, list[int]] = defaultdict(lambda: [0, 0])
    artifacts = stages = damaged = 0
    for manifest in store.iter_manifests():
        if isinstance(manifest, Miss):
            damaged += 1
        elif manifest.stage is not Stage.COMPILE:
            stages += 1
        else:
            artifacts += 1
            size = sum(file.size_bytes for file in manifest.files)
            spec, target = str(manifest.action.get("spec", "?")), manifest.action.get("target", {})
            name = str(target.get("name", "?") if isinstance(target, dict) else target)
            for group, key in ((by_target, name), (by_family, spec.partition(".")[0])):
                group[key][0] += 1
                group[key][1] += size
    sizes = [blob.size_bytes for blob in store.iter_blobs()]
    return Usage(
        artifacts,
        stages,
        len(sizes),
        sum(sizes),
        {name: (count, size) for name, (count, size) in sorted(by_target.items())},
        {name: (count, size) for name, (count, size) in sorted(by_family.items())},
        damaged,
    )
