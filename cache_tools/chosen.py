"""What a command that copies from a store is about: a closed set of artifacts, verified."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from cache_tools.inventory import take_inventory
from cache_tools.selection import Selection
from tkc.cache import Miss, RefEntry, Signature, Store
from tkc.cache.sealed import seal
from tkc.model import Digest, Manifest


@dataclass(frozen=True)
class Chosen:
    """Artifacts of which everything is there.

    Attributes:
        refs, signatures: by request.
        manifests: by key.
        blobs: their sizes, by digest.
        skipped: what was left out because it is damaged or missing, one line each.
    """

    refs: Mapping[Digest, RefEntry]
    manifests: Mapping[Digest, Manifest]
    signatures: Mapping[Digest, Signature]
    blobs: Mapping[Digest, int]
    skipped: tuple[str, ...]

    def records(self) -> Iterator[tuple[str, Digest, bytes]]:
        """Kind, name and written form of everything that is not a blob, in the order in which it may be shown."""
        for key, manifest in sorted(self.manifests.items()):
            yield "actions", key, seal(manifest.to_bytes())
        for request, signature in sorted(self.signatures.items()):
            yield "signatures", request, signature.to_bytes()
        for request, ref in sorted(self.refs.items()):
            yield "refs", request, seal(ref.to_bytes())


def choose(store: Store, selection: Selection, *, stages: bool = False) -> Chosen:
    """What refs point at and `selection` chooses; with `stages`, also what it was made from. Verifies every blob."""
    inventory = take_inventory(store)
    refs, manifests, signatures = dict[Digest, RefEntry](), dict[Digest, Manifest](), dict[Digest, Signature]()
    skipped = []
    for request, ref in inventory.refs.items():
        if (manifest := inventory.manifests.get(ref.key)) is None or not selection.matches(manifest):
            continue
        found = store.lookup(ref.key)
        if isinstance(found, Miss):
            skipped.append(found.reason)
            continue
        refs[request] = ref
        if isinstance(signature := store.read_signature(request), Signature):
            signatures[request] = signature
        keys = inventory.reach([ref.key]).keys if stages else {ref.key}
        for key in keys & set(inventory.manifests):
            if key == ref.key or store.lookup(key):
                manifests[key] = inventory.manifests[key]
    files = [entry for manifest in manifests.values() for entry in manifest.files]
    blobs = {entry.digest: entry.size_bytes for entry in files}
    return Chosen(refs, manifests, signatures, blobs, tuple(skipped))
