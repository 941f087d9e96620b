"""Remove chosen artifacts at once, so that nothing hits them any more: for results that turned out wrong.

Refs and manifests go now; stages that they were made from go too, so that building again really compiles.
Blobs are left to `gc`: whoever is loading one keeps it.
"""

from __future__ import annotations

from dataclasses import dataclass

from cache_tools.inventory import Inventory, take_inventory
from cache_tools.selection import Selection, spec_name, target_name, title_of
from tkc.cache import Store
from tkc.errors import StoreError, TkcError
from tkc.model import Digest, Manifest


@dataclass(frozen=True)
class Removal:
    """What goes: keys of manifests, requests of refs, and the artifacts by name."""

    manifests: tuple[Digest, ...]
    refs: tuple[Digest, ...]
    titles: tuple[str, ...]


def rm(store: Store, selection: Selection, *, dry_run: bool = False) -> Removal:
    """Remove what `selection` chooses. Raises TkcError if it chooses everything, StoreError if a pin is among it."""
    if not selection:
        raise TkcError(
            "nothing was selected to remove; name a kernel, target, toolchain or key. `prune` drops by policy"
        )
    inventory = take_inventory(store)
    removal = _plan(inventory, selection)
    if pinned := [key.short for key in removal.manifests if key in inventory.pins]:
        raise StoreError(f"pinned artifacts are selected, so nothing is removed: {', '.join(pinned)}. Unpin them first")
    if not dry_run:
        for request in removal.refs:
            store.remove_ref(request)
        for key in removal.manifests:
            store.remove_manifest(key)
    return removal


def pinnable(inventory: Inventory, selection: Selection) -> tuple[Manifest, ...]:
    """The artifacts that `selection` chooses, as a pin takes them: what refs point at, or whatever a key names."""
    pointed_at = {ref.key for ref in inventory.refs.values()}
    chosen = [one for one in inventory.manifests.values() if selection.matches(one)]
    return tuple(one for one in chosen if one.key in pointed_at or selection.keys)


def pin(store: Store, selection: Selection, *, note: str = "", dry_run: bool = False) -> tuple[Manifest, ...]:
    """Keep what `selection` chooses, whatever prune is told. Raises TkcError if it chooses nothing."""
    chosen = pinnable(take_inventory(store), selection)
    if not chosen:
        raise TkcError("no artifact in the store matches, so nothing is pinned. `tkc cache usage` shows what there is")
    if not dry_run:
        for manifest in chosen:
            store.pin(manifest.key, note)
    return chosen


def unpin(store: Store, selection: Selection, *, dry_run: bool = False) -> tuple[Digest, ...]:
    """Take pins back, also of artifacts that are not there any more, if they are chosen by key."""
    inventory = take_inventory(store)
    keys = [key for key in inventory.pins if _chooses(selection, key, inventory)]
    if not dry_run:
        for key in keys:
            store.unpin(key)
    return tuple(sorted(keys))


def _chooses(selection: Selection, key: Digest, inventory: Inventory) -> bool:
    manifest = inventory.manifests.get(key)
    if manifest is None:
        return not selection or any(key.hex.startswith(text.removeprefix("sha256:")) for text in selection.keys)
    return selection.matches(manifest)


def describe(manifest: Manifest) -> str:
    """One line for people."""
    values = manifest.action.get("specialization")
    pairs = [f"{name}={value}" for name, value in values.items()] if isinstance(values, dict) else []
    what = " ".join((spec_name(manifest), *pairs, f"--target {target_name(manifest)}"))
    return f"{manifest.key.short}  {manifest.stage.value:8} {what}"


def _plan(inventory: Inventory, selection: Selection) -> Removal:
    chosen = {one.key for one in inventory.manifests.values() if selection.matches(one)}
    manifests = (_consumers(inventory, chosen) | inventory.reach(chosen).keys) & set(inventory.manifests)
    refs = [
        ref
        for ref in inventory.refs.values()
        if ref.key in manifests or (ref.key not in inventory.manifests and selection.matches_ref(ref))
    ]
    titles = sorted({title_of(ref.fields) for ref in refs})
    return Removal(tuple(sorted(manifests)), tuple(sorted(ref.request for ref in refs)), tuple(titles))


def _consumers(inventory: Inventory, keys: set[Digest]) -> set[Digest]:
    """`keys`, and whatever was made from them."""
    found, newest = set(keys), set(keys)
    while newest:
        newest = {key for key, one in inventory.manifests.items() if newest.intersection(one.inputs)} - found
        found |= newest
    return found
