"""Choose artifacts to drop, by policy. Dropping one removes its ref; `gc` frees the bytes after its grace period."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from cache_tools.gc import DEFAULT_GRACE_S
from cache_tools.inventory import Inventory, Reached, take_inventory
from cache_tools.selection import Selection, title_of
from cache_tools.units import age_text
from tkc.cache import RefEntry, Store
from tkc.model import Digest, Stage


@dataclass(frozen=True)
class Policy:
    """What to drop. Without `unused_s`, `max_bytes` and `stages`, everything that is selected goes.

    Attributes:
        selection: only these are considered; everything, if it is empty.
        unused_s: drop what has not been used for this long.
        max_bytes: drop the least recently used until what is left occupies no more.
        keep_used_s: keep what was used within this time, whatever the size.
        stages: drop kept outputs of single stages, and only these unless something else is asked for.
    """

    selection: Selection = field(default_factory=Selection)
    unused_s: float | None = None
    max_bytes: int | None = None
    keep_used_s: float = 0.0
    stages: bool = False

    @property
    def drops_refs(self) -> bool:
        """Whether artifacts go, not only stages."""
        return not self.stages or self.unused_s is not None or self.max_bytes is not None


@dataclass(frozen=True, slots=True)
class Dropped:
    """A ref to drop, and why."""

    ref: RefEntry
    used_s: float
    reason: str

    @property
    def title(self) -> str:
        return title_of(self.ref.fields)


@dataclass(frozen=True)
class Plan:
    """What a prune does.

    Attributes:
        dropped: refs to remove, in the order in which they were chosen.
        stages: keys of stage manifests to remove.
        kept: how many refs stay.
        pinned: how many of them only because they are pinned.
        kept_bytes: what is reachable afterwards.
        freed_bytes: what gc can free for it, after its grace period.
    """

    dropped: tuple[Dropped, ...]
    stages: tuple[Digest, ...]
    kept: int
    pinned: int
    kept_bytes: int
    freed_bytes: int


def prune(store: Store, policy: Policy, *, dry_run: bool = False) -> Plan:
    """Drop what `policy` says from a writable store; or only say what would go.

    Raises StoreError if nothing may be written, or an entry is there and cannot be read.
    """
    inventory = take_inventory(store)
    inventory.require_readable()
    now_s = time.time()
    plan = plan_prune(inventory, policy, now_s)
    if not dry_run:
        for dropped in plan.dropped:
            store.remove_ref(dropped.ref.request)
        for key in plan.stages:
            store.remove_manifest(key, untouched_since_s=now_s - DEFAULT_GRACE_S)
    return plan


def plan_prune(inventory: Inventory, policy: Policy, now_s: float) -> Plan:
    """Decide; touches nothing."""
    before = inventory.reach({*(ref.key for ref in inventory.refs.values()), *inventory.pins})
    candidates = _candidates(inventory, policy) if policy.drops_refs else []
    free = [ref for ref in candidates if ref.key not in inventory.pins]
    dropped = tuple(_choose(inventory, policy, free, now_s))
    gone = {one.ref.request for one in dropped}
    kept = [ref for request, ref in inventory.refs.items() if request not in gone]
    stages = tuple(_stages(inventory, policy, now_s)) if policy.stages else ()
    after = _without_stages(inventory, {*(ref.key for ref in kept), *inventory.pins}, set(stages))
    return Plan(
        dropped,
        stages,
        kept=len(kept),
        pinned=len(candidates) - len(free),
        kept_bytes=inventory.disk_bytes(after.blobs),
        freed_bytes=inventory.disk_bytes(before.blobs - after.blobs),
    )


def _candidates(inventory: Inventory, policy: Policy) -> list[RefEntry]:
    """The selected refs, the least recently used first."""
    chosen = []
    for ref in inventory.refs.values():
        manifest = inventory.manifests.get(ref.key)
        if policy.selection.matches(manifest) if manifest else policy.selection.matches_ref(ref):
            chosen.append(ref)
    return sorted(chosen, key=lambda ref: (inventory.last_used_s(ref), ref.request))


def _choose(inventory: Inventory, policy: Policy, candidates: Sequence[RefEntry], now_s: float) -> Iterator[Dropped]:
    size = _Size(inventory) if policy.max_bytes is not None else None
    for ref in candidates:
        used_s = inventory.last_used_s(ref)
        age_s = now_s - used_s
        if age_s < policy.keep_used_s:
            continue
        if policy.unused_s is not None and age_s >= policy.unused_s:
            reason = f"not used for {age_text(age_s)}"
        elif size is not None and policy.max_bytes is not None and size.bytes > policy.max_bytes:
            reason = f"over the size limit, not used for {age_text(age_s)}"
        elif policy.unused_s is None and size is None:
            reason = "selected"
        else:
            continue
        if size is not None:
            size.drop(ref.key)
        yield Dropped(ref, used_s, reason)


class _Size:
    """What is reachable, in bytes, while roots are dropped one by one."""

    def __init__(self, inventory: Inventory) -> None:
        self._inventory = inventory
        roots = [*(ref.key for ref in inventory.refs.values()), *inventory.pins]
        self._reached: Mapping[Digest, Reached] = {key: inventory.reach([key]) for key in set(roots)}
        self._users = Counter(blob for key in roots for blob in self._reached[key].blobs)
        self.bytes = inventory.disk_bytes(self._users)

    def drop(self, key: Digest) -> None:
        """One root fewer points at this action."""
        for blob in self._reached[key].blobs:
            self._users[blob] -= 1
            if self._users[blob] == 0:
                self.bytes -= self._inventory.disk_bytes([blob])


def _stages(inventory: Inventory, policy: Policy, now_s: float) -> Iterator[Digest]:
    """Stage manifests that are neither pinned nor possibly in use by a build right now."""
    chosen = inventory.reach(one.key for one in inventory.artifacts if policy.selection.matches(one)).keys
    for key, manifest in inventory.manifests.items():
        wanted = not policy.selection or key in chosen or policy.selection.matches(manifest)
        idle_s = now_s - inventory.used_s[key]
        idle = idle_s >= max(DEFAULT_GRACE_S, policy.keep_used_s)
        if manifest.stage is not Stage.COMPILE and wanted and idle and key not in inventory.pins:
            yield key


def _without_stages(inventory: Inventory, roots: set[Digest], stages: set[Digest]) -> Reached:
    reached, left = Reached(set(stages), set()), roots - stages
    return inventory.reach(left, into=reached)
