"""Bring the artifacts of another store folder into a store, whatever version its entries were written in.

Folder names carry the version of what is inside (``blobs-v1``). A version that this tkc does not write and can
still read gets a reader in `_READERS`; so far there is one version, and migrating means to copy and verify.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from pathlib import Path

from cache_tools.selection import Selection
from cache_tools.sync import OnProgress, Synced, pull
from cache_tools.transfer import Source
from tkc.cache import Store
from tkc.errors import StoreError

_BUCKET = re.compile(r"(blobs|actions|refs)-v(\d+)", re.ASCII)
_READERS: Mapping[tuple[int, int, int], Callable[[Path], Source]] = {(1, 1, 1): Store}
"""How to read a store, by the versions of its blobs, manifests and refs."""


def migrate(
    folder: Path,
    store: Store,
    selection: Selection | None = None,
    *,
    dry_run: bool = False,
    on_progress: OnProgress | None = None,
) -> Synced:
    """Copy what refs point at and `selection` chooses from the store at `folder`, verified. Leaves `folder` as it is.

    Raises StoreError if `folder` holds no store, or one in a version that this tkc cannot read.
    """
    if folder.resolve() == store.root.resolve():
        raise StoreError(f"{folder} is the store itself; name the folder of another one")
    reader = _reader(folder)
    return pull(reader(folder.absolute()), store, selection, dry_run=dry_run, on_progress=on_progress)


def _reader(folder: Path) -> Callable[[Path], Source]:
    found = {
        kind: number
        for name in _names(folder)
        if (match := _BUCKET.fullmatch(name))
        for kind, number in [match.groups()]
    }
    if not found:
        raise StoreError(f"{folder} holds no store: it has no folder like blobs-v1, actions-v1, refs-v1")
    versions = tuple(int(found.get(kind, 1)) for kind in ("blobs", "actions", "refs"))
    if len(versions) == 3 and versions in _READERS:
        return _READERS[versions]
    raise StoreError(
        f"{folder} holds entries of versions {versions} (blobs, manifests, refs); this tkc reads "
        f"{', '.join(map(str, _READERS))}. Use the tkc that wrote it, or a newer one, to export a bundle"
    )


def _names(folder: Path) -> list[str]:
    try:
        return sorted(path.name for path in folder.iterdir() if path.is_dir())
    except OSError as error:
        raise StoreError(f"{folder} cannot be listed: {error.strerror}") from error
