"""Everything that a store holds, read once, and what reaches what.

Manifests reach their files' blobs, and through `inputs` the stages that they were made from; refs and pins
reach manifests. An input whose manifest is not there is no flaw: stages are kept for incremental builds only.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from tkc.cache import EntryStatus, Miss, Pin, RefEntry, Store
from tkc.errors import StoreError
from tkc.model import Digest, Manifest, Stage


@dataclass(slots=True)
class Reached:
    """What can be reached from some actions: keys of manifests, digests of blobs."""

    keys: set[Digest] = field(default_factory=set)
    blobs: set[Digest] = field(default_factory=set)


@dataclass(frozen=True)
class Inventory:
    """A store at one moment.

    Attributes:
        refs: by request; those that can be read.
        manifests: by key; those that can be read.
        pins: by key.
        blobs: by digest, unverified.
        flaws: by name of the ref or manifest, why it cannot be read.
        used_s: of each manifest, readable or not, and of each ref: when it was last known to be in use.
    """

    refs: Mapping[Digest, RefEntry]
    manifests: Mapping[Digest, Manifest]
    pins: Mapping[Digest, Pin]
    blobs: Mapping[Digest, EntryStatus]
    flaws: Mapping[Digest, Miss]
    used_s: Mapping[Digest, float]

    def reach(self, roots: Iterable[Digest], into: Reached | None = None) -> Reached:
        """Follow actions to their inputs and files; adds to `into` if it is given."""
        reached, left = into or Reached(), list(roots)
        while left:
            key = left.pop()
            if key in reached.keys:
                continue
            reached.keys.add(key)
            if (manifest := self.manifests.get(key)) is not None:
                reached.blobs.update(entry.digest for entry in manifest.files)
                left += manifest.inputs
        return reached

    def last_used_s(self, ref: RefEntry) -> float:
        """When the artifact behind a ref was last known to be in use."""
        return max(self.used_s.get(ref.request, 0.0), self.used_s.get(ref.key, 0.0))

    def disk_bytes(self, digests: Iterable[Digest]) -> int:
        """What blobs occupy; those that are not there, nothing."""
        return sum(self.blobs[digest].disk_bytes for digest in digests if digest in self.blobs)

    @property
    def artifacts(self) -> tuple[Manifest, ...]:
        """The manifests of whole compiles."""
        return tuple(one for one in self.manifests.values() if one.stage is Stage.COMPILE)

    def require_readable(self) -> None:
        """Raise StoreError if an entry is there and cannot be read: what it reaches would look like garbage."""
        if unreadable := [flaw.reason for flaw in self.flaws.values() if not (flaw.damaged or flaw.absent)]:
            raise StoreError(
                f"nothing is removed while entries are there that cannot be read: {unreadable[0]}"
                + (f", and {len(unreadable) - 1} more" if len(unreadable) > 1 else "")
                + ". `tkc cache fsck` lists them"
            )


def take_inventory(store: Store) -> Inventory:
    """Read every ref, pin and manifest, and list every blob. Raises StoreError if the store cannot be examined."""
    refs, manifests, flaws, used_s = (
        dict[Digest, RefEntry](),
        dict[Digest, Manifest](),
        dict[Digest, Miss](),
        dict[Digest, float](),
    )
    for status in store.ref_statuses():
        ref = store.read_ref_entry(status.name)
        used_s[status.name] = status.used_s
        if isinstance(ref, Miss):
            flaws[status.name] = ref
        else:
            refs[status.name] = ref
    for status in store.manifest_statuses():
        manifest = store.read_manifest(status.name)
        used_s[status.name] = status.used_s
        if isinstance(manifest, Miss):
            flaws[status.name] = manifest
        else:
            manifests[status.name] = manifest
    pins = {pin.key: pin for pin in store.pins()}
    blobs = {status.name: status for status in store.iter_blobs()}
    return Inventory(refs, manifests, pins, blobs, flaws, used_s)
