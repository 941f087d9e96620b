"""How much a store holds, by target, family and toolchain, and how long it has not been used."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass

from cache_tools.inventory import Inventory, take_inventory
from cache_tools.selection import family_of, spec_name, target_name
from tkc.cache import Store
from tkc.model import Manifest

Groups = dict[str, tuple[int, int]]
"""``name → (artifacts, bytes)``."""

AGES_S = {"a day": 24 * 3600.0, "a week": 7 * 24 * 3600.0, "a month": 30 * 24 * 3600.0}


@dataclass(frozen=True, slots=True)
class Usage:
    """Bytes and counts of a store.

    Attributes:
        artifacts: complete compiles.
        stages: kept outputs of single stages, for incremental builds.
        refs, pins: roots.
        blobs, blob_bytes, disk_bytes: distinct contents, their length, and what they occupy.
        unreachable_bytes: what no ref or pin reaches, on disk; gc frees it after its grace period.
        by_target, by_family, by_toolchain: ``name → (artifacts, bytes)``; bytes shared between artifacts count in
            each.
        by_age: the same by when an artifact was last known to be in use, the newest first.
        damaged: manifests and refs that could not be read.
    """

    artifacts: int
    stages: int
    refs: int
    pins: int
    blobs: int
    blob_bytes: int
    disk_bytes: int
    unreachable_bytes: int
    by_target: Groups
    by_family: Groups
    by_toolchain: Groups
    by_age: Groups
    damaged: int


def usage(store: Store, *, now_s: float) -> Usage:
    """Count what `store` holds. Damaged entries are counted, not raised."""
    inventory = take_inventory(store)
    artifacts = inventory.artifacts
    reached = inventory.reach({*(ref.key for ref in inventory.refs.values()), *inventory.pins})
    blobs = inventory.blobs
    return Usage(
        artifacts=len(artifacts),
        stages=len(inventory.manifests) - len(artifacts),
        refs=len(inventory.refs),
        pins=len(inventory.pins),
        blobs=len(blobs),
        blob_bytes=sum(status.size_bytes for status in blobs.values()),
        disk_bytes=inventory.disk_bytes(blobs),
        unreachable_bytes=inventory.disk_bytes(set(blobs) - reached.blobs),
        by_target=_group((target_name(one), one) for one in artifacts),
        by_family=_group((family_of(spec_name(one)), one) for one in artifacts),
        by_toolchain=_group((_tilelang(one), one) for one in artifacts),
        by_age=_by_age(inventory, artifacts, now_s),
        damaged=len(inventory.flaws),
    )


def _group(named: Iterable[tuple[str, Manifest]]) -> Groups:
    found: dict[str, list[int]] = defaultdict(lambda: [0, 0])
    for name, manifest in named:
        found[name][0] += 1
        found[name][1] += sum(file.size_bytes for file in manifest.files)
    return {name: (count, size) for name, (count, size) in sorted(found.items())}


def _tilelang(manifest: Manifest) -> str:
    toolchain = manifest.action.get("toolchain")
    component = toolchain.get("tilelang") if isinstance(toolchain, dict) else None
    return str(component.get("version", "?")) if isinstance(component, dict) else "?"


def _by_age(inventory: Inventory, artifacts: tuple[Manifest, ...], now_s: float) -> Groups:
    def name(manifest: Manifest) -> str:
        age_s = now_s - inventory.used_s[manifest.key]
        return next((f"within {text}" for text, limit_s in AGES_S.items() if age_s < limit_s), "longer ago")

    grouped = _group((name(one), one) for one in artifacts)
    order = [*(f"within {text}" for text in AGES_S), "longer ago"]
    return {text: grouped[text] for text in order if text in grouped}
