"""Check a whole store: re-hash every blob, read every record, follow every pointer; repair what can be.

A repair never guesses: what is restored comes from another layer and has the digest that it must have. What
cannot be restored is dropped, so that the next build makes it again: damaged entries go to quarantine, a
manifest whose blobs are lost and a ref that leads nowhere are removed.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from enum import IntFlag

from cache_tools.transfer import Source, copy_manifest
from tkc.cache import Miss, RefEntry, Store
from tkc.errors import StoreError
from tkc.model import Digest, Manifest


class Kind(IntFlag):
    """What is wrong; the sum is the command's exit code. 2 is left to a command line that is not understood."""

    DAMAGED = 1
    """An entry is not what its digest says."""
    DANGLING = 4
    """An entry needs one that is not there."""
    UNREADABLE = 8
    """An entry cannot be read, or others could have written it."""
    STRAY = 16
    """Something lies among the entries that is none; harmless."""


@dataclass(frozen=True, slots=True)
class Problem:
    """One finding.

    Attributes:
        kind: what is wrong.
        entry: which entry, such as ``blob 0123456789ab``.
        reason: what was found.
        outcome: what a repair did about it: ``restored from …``, ``dropped``; empty if nothing.
    """

    kind: Kind
    entry: str
    reason: str
    outcome: str = ""

    @property
    def restored(self) -> bool:
        return self.outcome.startswith("restored")


@dataclass(frozen=True)
class Report:
    """What a check found.

    Attributes:
        blobs, manifests, refs: how many were checked.
        problems: findings; what was restored is among them.
    """

    blobs: int
    manifests: int
    refs: int
    problems: tuple[Problem, ...]

    @property
    def exit_code(self) -> int:
        """0 if nothing is lost; else the sum of the kinds of what was not restored."""
        kinds = Kind(0)
        for problem in self.problems:
            kinds |= Kind(0) if problem.restored else problem.kind
        return int(kinds)


OnProgress = Callable[[int, int], object]
"""Called with the number of blobs checked, and of all."""


def fsck(
    store: Store, *, repair_from: Mapping[str, Source] | None = None, on_progress: OnProgress | None = None
) -> Report:
    """Check everything in `store`; with `repair_from`, named sources of which there may be none, repair it as well.

    Never raises for an entry. A read-only store is only examined. Raises StoreError if the store as a whole
    cannot be examined or, for a repair, written.
    """
    found = _examine(store, on_progress)
    problems = found.problems
    if repair_from is not None:
        repair = _Repair(store, repair_from, found)
        problems = [replace(problem, outcome=repair.outcome(problem)) for problem in problems]
        repair.finish()
    plain = tuple(Problem(one.kind, one.entry, one.reason, one.outcome) for one in problems)
    return Report(found.blob_count, found.manifest_count, found.ref_count, plain)


@dataclass(frozen=True, slots=True)
class _Found(Problem):
    """A finding, and the entries that would have to be there."""

    blob: Digest | None = None
    key: Digest | None = None
    request: Digest | None = None


@dataclass
class _Examined:
    problems: list[_Found] = field(default_factory=list)
    manifests: dict[Digest, Manifest] = field(default_factory=dict)
    refs: dict[Digest, RefEntry] = field(default_factory=dict)
    bad_blobs: set[Digest] = field(default_factory=set)
    blob_count: int = 0
    manifest_count: int = 0
    ref_count: int = 0


def _examine(store: Store, on_progress: OnProgress | None) -> _Examined:
    found = _Examined()
    _examine_blobs(store, found, on_progress)
    _examine_manifests(store, found)
    _examine_refs(store, found)
    for pin in store.pins():
        if pin.key not in found.manifests:
            entry = f"pin {pin.key.short}"
            found.problems.append(_Found(Kind.DANGLING, entry, "it pins a manifest that is not there", key=pin.key))
    found.problems += (_Found(Kind.STRAY, f"file {path}", "it is no entry") for path in store.strays())
    return found


def _examine_blobs(store: Store, found: _Examined, on_progress: OnProgress | None) -> None:
    digests = [status.name for status in store.iter_blobs()]
    found.blob_count = len(digests)
    with ThreadPoolExecutor(os.cpu_count()) as pool:
        for count, (digest, flaw) in enumerate(zip(digests, pool.map(store.blob_flaw, digests), strict=True), 1):
            if on_progress:
                on_progress(count, len(digests))
            if flaw is not None and not flaw.absent:
                found.bad_blobs.add(digest)
                found.problems.append(_found(flaw, f"blob {digest.short}", blob=digest))


def _examine_manifests(store: Store, found: _Examined) -> None:
    present = {status.name for status in store.iter_blobs()} - found.bad_blobs
    for key in list(store.keys()):
        found.manifest_count += 1
        manifest = store.read_manifest(key)
        if isinstance(manifest, Miss):
            if not manifest.absent:
                found.problems.append(_found(manifest, f"manifest {key.short}", key=key))
            continue
        found.manifests[key] = manifest
        for entry in manifest.files:
            if entry.digest not in present and entry.digest not in found.bad_blobs:
                reason = f"its file {entry.name} is blob {entry.digest.short}, which is not there"
                found.problems.append(
                    _Found(Kind.DANGLING, f"manifest {key.short}", reason, blob=entry.digest, key=key)
                )


def _examine_refs(store: Store, found: _Examined) -> None:
    for request in list(store.requests()):
        found.ref_count += 1
        ref = store.read_ref_entry(request)
        if isinstance(ref, Miss):
            if not ref.absent:
                found.problems.append(_found(ref, f"ref {request.short}", request=request))
            continue
        found.refs[request] = ref
        if ref.key not in found.manifests:
            reason = f"it points at manifest {ref.key.short}, which is not there"
            found.problems.append(_Found(Kind.DANGLING, f"ref {request.short}", reason, key=ref.key, request=request))


def _found(miss: Miss, entry: str, **names: Digest) -> _Found:
    return _Found(Kind.DAMAGED if miss.damaged else Kind.UNREADABLE, entry, miss.reason, "", **names)


class _Repair:
    """Restores from other places what is missing or damaged, and drops what cannot be restored."""

    def __init__(self, store: Store, sources: Mapping[str, Source], found: _Examined) -> None:
        store.require_writable()
        self._store = store
        self._sources = sources
        self._found = found
        self._suspects = {one.blob for one in found.problems if one.blob is not None}

    def outcome(self, problem: _Found) -> str:
        """Do something about one finding, and say what."""
        if problem.kind is Kind.STRAY or (problem.kind is Kind.UNREADABLE and not self._sources):
            return ""
        if problem.kind is Kind.DANGLING and self._is_there(problem):
            return "restored already"
        for name, source in self._sources.items():
            try:
                restored = self._restore(problem, source)
            except StoreError:
                continue
            if restored:
                return f"restored from {name}"
        return "" if problem.kind is Kind.UNREADABLE else "dropped"

    def finish(self) -> None:
        """Drop manifests and refs that still lead nowhere; what only cannot be read just now leads somewhere."""
        lost = {key for key, manifest in self._found.manifests.items() if not self._whole(manifest)}
        for key in lost:
            self._store.remove_manifest(key)
        for request, ref in self._found.refs.items():
            if _is_lost(self._store.read_manifest(ref.key)):
                self._store.remove_ref(request)
        for pin in list(self._store.pins()):
            if _is_lost(self._store.read_manifest(pin.key)):
                self._store.unpin(pin.key)

    def _restore(self, problem: _Found, source: Source) -> bool:
        if problem.request is not None and problem.key is None:
            return self._restore_ref(problem.request, source)
        if problem.blob is not None:
            return self._store.publish_blob(source.read_blob(problem.blob)) == problem.blob
        assert problem.key is not None
        return not isinstance(copy_manifest(source, problem.key, self._store), Miss)

    def _is_there(self, problem: _Found) -> bool:
        """Whether restoring another entry has brought back what this one needs."""
        if problem.blob is not None:
            return self._store.blob_flaw(problem.blob) is None
        return problem.key is not None and bool(self._store.lookup(problem.key))

    def _restore_ref(self, request: Digest, source: Source) -> bool:
        ref = source.read_ref_entry(request)
        if isinstance(ref, Miss) or isinstance(copy_manifest(source, ref.key, self._store), Miss):
            return False
        self._store.write_ref(request, ref.fields, ref.key)
        return True

    def _whole(self, manifest: Manifest) -> bool:
        suspects = (entry.digest for entry in manifest.files if entry.digest in self._suspects)
        return not any(_is_lost(self._store.blob_flaw(digest)) for digest in suspects)


def _is_lost(found: object) -> bool:
    return isinstance(found, Miss) and (found.damaged or found.absent)


def by_kind(problems: Iterable[Problem]) -> Iterator[tuple[Kind, int]]:
    """How many findings there are of each kind that occurs."""
    kinds = [problem.kind for problem in problems]
    return ((kind, kinds.count(kind)) for kind in Kind if kind in kinds)
