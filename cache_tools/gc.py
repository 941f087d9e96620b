"""Delete what no root reaches. Roots are the refs, the pins, and whatever was in use a short while ago.

Safe beside builds and loads:

* A build publishes blobs before the manifest that needs them, and stages before the compile: what is younger
  than the grace period stays, and so does what it reaches.
* A build that finds an entry in place marks it as in use. An entry is judged once more after it was renamed
  aside, so either the gc sees that mark and puts it back, or the build is told that it is gone and writes it.
* Manifests go first. If one turns out to be in use, its blobs stay too.
* A reader that has opened a file keeps its bytes; the loader reads an artifact once, into memory. One that has
  only read the ref is covered by the grace period, which begins when the ref is dropped.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass, field

from cache_tools.inventory import Inventory, take_inventory
from tkc.cache import Store
from tkc.model import Digest, Manifest

DEFAULT_GRACE_S = 2 * 3600.0
"""An hour because uses are noted once an hour, and another for the longest compile."""


@dataclass
class Collected:
    """What a gc removed, or would remove.

    Attributes:
        manifests, blobs: how many went.
        freed_bytes: what the blobs occupied.
        waiting_blobs, waiting_bytes: what no ref or pin reaches, and the grace period still keeps.
        leftovers: private folders of builds that were killed.
        stamps: of tools that made nothing which is still here.
    """

    manifests: int = 0
    blobs: int = 0
    freed_bytes: int = 0
    waiting_blobs: int = 0
    waiting_bytes: int = 0
    leftovers: int = 0
    stamps: int = 0


def gc(store: Store, *, grace_s: float = DEFAULT_GRACE_S, dry_run: bool = False) -> Collected:
    """Remove manifests and blobs that no root reaches and nobody has used for `grace_s`.

    Killed at any point it leaves a good store. Raises StoreError if nothing may be written, or an entry
    cannot be read, whose artifacts would look unreachable; then nothing was removed.
    """
    now_s = time.time() if dry_run else store.clock_s()
    inventory = take_inventory(store)
    inventory.require_readable()
    sweep = _Sweep(store, inventory, unused_since_s=now_s - grace_s, dry_run=dry_run)
    sweep.manifests()
    sweep.blobs()
    sweep.stamps()
    if not dry_run:
        sweep.collected.leftovers = store.clean_staging()
    return sweep.collected


@dataclass
class _Sweep:
    store: Store
    inventory: Inventory
    unused_since_s: float
    dry_run: bool
    collected: Collected = field(default_factory=Collected)

    def __post_init__(self) -> None:
        roots = {*(ref.key for ref in self.inventory.refs.values()), *self.inventory.pins}
        self._rooted = self.inventory.reach(roots)
        self._live = self.inventory.reach({*roots, *self._young()})

    def _young(self) -> Iterator[Digest]:
        return (key for key in self.inventory.manifests if self.inventory.used_s[key] > self.unused_since_s)

    def manifests(self) -> None:
        for key in sorted(set(self.inventory.manifests) - self._live.keys):
            if self.dry_run or self.store.remove_manifest(key, untouched_since_s=self.unused_since_s):
                self.collected.manifests += 1
            else:
                self.inventory.reach([key], into=self._live)

    def blobs(self) -> None:
        collected = self.collected
        for digest, status in self.inventory.blobs.items():
            if digest in self._rooted.blobs:
                continue
            if digest in self._live.blobs or status.used_s > self.unused_since_s or not self._remove(digest):
                collected.waiting_blobs += 1
                collected.waiting_bytes += status.disk_bytes
            else:
                collected.blobs += 1
                collected.freed_bytes += status.disk_bytes

    def stamps(self) -> None:
        """Remove stamps of tools that made none of the manifests that stay. Best effort: a stamp saves time alone."""
        kept = (self.inventory.manifests[key] for key in self._live.keys & set(self.inventory.manifests))
        tools = {digest for manifest in kept for digest in _tools_of(manifest)}
        for path in self.store.stale_stamps(tools, unused_since_s=self.unused_since_s):
            with suppress(OSError):
                if not self.dry_run:
                    path.unlink()
                self.collected.stamps += 1

    def _remove(self, digest: Digest) -> bool:
        return self.dry_run or self.store.remove_blob(digest, untouched_since_s=self.unused_since_s)


def _tools_of(manifest: Manifest) -> Iterator[Digest]:
    """The digests of the toolchain's components; an odd record has none."""
    toolchain = manifest.action.get("toolchain")
    for component in toolchain.values() if isinstance(toolchain, dict) else ():
        with suppress(ValueError, AttributeError):
            yield Digest.parse(component.get("digest", ""))
