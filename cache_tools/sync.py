"""`push` and `pull`: copy artifacts to and from a remote, in parallel, going on where an earlier try ended.

Entries are named by their content, so going on means to leave out what is there. Blobs go before the manifest
that needs them and refs go last: whoever reads meanwhile sees an artifact whole or not at all.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from typing import TypeVar

from cache_tools.chosen import Chosen, choose
from cache_tools.remote import Remote, index_bytes, local_folder
from cache_tools.selection import Selection
from cache_tools.transfer import Copied, Source, copy_request
from tkc.cache import Miss, RefEntry, Store, Verifier
from tkc.errors import StoreDamagedError, StoreError
from tkc.model import Digest

DEFAULT_JOBS = 8

OnProgress = Callable[[int, int], object]
"""Called with how many artifacts or blobs are done, and of how many."""

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Synced:
    """What a push or pull did.

    Attributes:
        refs: artifacts that are there now; of a dry run of `pull`, those that would be copied.
        blobs, blob_bytes: what had to be copied for it.
        skipped: what was left out and why, one line each.
    """

    refs: int
    blobs: int
    blob_bytes: int
    skipped: tuple[str, ...] = ()


def push(
    store: Store,
    address: str,
    selection: Selection | None = None,
    *,
    stages: bool = False,
    jobs: int = DEFAULT_JOBS,
    force: bool = False,
    dry_run: bool = False,
    on_progress: OnProgress | None = None,
) -> Synced:
    """Copy what refs point at and `selection` chooses to the remote at `address`, and bring its index up to date.

    A blob that is there with the right size is left out, unless `force` says to write everything again. Damaged
    artifacts are left out and reported. Raises StoreError if the remote does not answer or takes nothing.
    """
    chosen = choose(store, selection or Selection(), stages=stages)
    if (folder := local_folder(address)) is not None:
        return _push_to_folder(store, Store(folder, writable=True), chosen, dry_run, on_progress)
    return _push_to_remote(store, Remote(address), chosen, jobs, force, dry_run, on_progress)


def pull(
    source: Source | Remote,
    store: Store,
    selection: Selection | None = None,
    *,
    signers: Verifier | None = None,
    jobs: int = DEFAULT_JOBS,
    dry_run: bool = False,
    on_progress: OnProgress | None = None,
) -> Synced:
    """Copy what `selection` chooses from `source` to `store`, verified on arrival.

    What is damaged, unsigned (with `signers`) or cannot be had is left out and reported; the rest arrives. With
    `dry_run`, what would be copied is counted by what its manifests say. Raises StoreError if the source is not there
    or does not answer at all, or nothing can be written.
    """
    if isinstance(source, Store) and not source.is_there():
        raise StoreError(f"there is no store at {source.root}")
    wanted = _wanted(source, selection or Selection())
    missing = [ref for ref in wanted if store.read_ref(ref.request) != ref.key or not store.lookup(ref.key)]
    if dry_run:
        return _planned(source, store, missing)
    done = list(_parallel(lambda ref: _take(source, ref, store, signers), missing, jobs, on_progress))
    copied = [one for one in done if isinstance(one, Copied)]
    return Synced(
        len(wanted) - len(missing) + len(copied),
        sum(one.blobs for one in copied),
        sum(one.blob_bytes for one in copied),
        tuple(one.reason for one in done if isinstance(one, Miss)),
    )


def _planned(source: Source, store: Store, missing: Sequence[RefEntry]) -> Synced:
    found = [source.read_manifest(ref.key) for ref in missing]
    files = {entry.digest: entry.size_bytes for one in found if not isinstance(one, Miss) for entry in one.files}
    lacking = {digest: size for digest, size in files.items() if store.blob_flaw(digest) is not None}
    skipped = tuple(one.reason for one in found if isinstance(one, Miss))
    return Synced(len(found) - len(skipped), len(lacking), sum(lacking.values()), skipped)


def _wanted(source: Source | Remote, selection: Selection) -> Sequence[RefEntry]:
    """The refs that are selected; by their own fields where these say enough, so that little is read."""
    refs = list(source.refs()) if isinstance(source, Remote | Store) else []
    by_fields = Selection(selection.specs, selection.targets, selection.hosts, (), selection.keys)
    chosen = [ref for ref in refs if by_fields.matches_ref(ref)]
    if not selection.toolchains:
        return chosen
    manifests = ((ref, source.read_manifest(ref.key)) for ref in chosen)
    return [ref for ref, manifest in manifests if not isinstance(manifest, Miss) and selection.matches(manifest)]


def _take(source: Source, ref: RefEntry, store: Store, signers: Verifier | None) -> Copied | Miss:
    try:
        return copy_request(source, ref.request, store, signers=signers)
    except StoreDamagedError as error:
        return Miss(str(error), damaged=True)


def _push_to_folder(
    store: Store, folder: Store, chosen: Chosen, dry_run: bool, on_progress: OnProgress | None
) -> Synced:
    """By the ordinary writing of a store, and with an index, for a web server that may show the folder."""
    missing = {digest: size for digest, size in chosen.blobs.items() if folder.blob_flaw(digest) is not None}
    if not dry_run:
        for count, digest in enumerate(missing, 1):
            folder.publish_blob(store.read_blob(digest))
            if on_progress:
                on_progress(count, len(missing))
        for manifest in chosen.manifests.values():
            folder.commit_manifest(manifest)
        for signature in chosen.signatures.values():
            folder.write_signature(signature)
        for request, ref in chosen.refs.items():
            folder.write_ref(request, ref.fields, ref.key)
        folder.write_index(index_bytes(folder.refs()))
    return Synced(len(chosen.refs), len(missing), sum(missing.values()), chosen.skipped)


def _push_to_remote(
    store: Store,
    remote: Remote,
    chosen: Chosen,
    jobs: int,
    force: bool,
    dry_run: bool,
    on_progress: OnProgress | None,
) -> Synced:
    missing = chosen.blobs if force else _missing_blobs(remote, chosen, jobs)
    if not dry_run:

        def send(digest: Digest) -> None:
            remote.write("blobs", digest, store.read_blob(digest))

        list(_parallel(send, list(missing), jobs, on_progress))
        for kind in ("actions", "signatures", "refs"):
            records = [(name, data) for one, name, data in chosen.records() if one == kind]
            list(_parallel(partial(_write_record, remote, kind), records, jobs, None))
        remote.write_index(chosen.refs.values())
    return Synced(len(chosen.refs), len(missing), sum(missing.values()), chosen.skipped)


def _write_record(remote: Remote, kind: str, record: tuple[Digest, bytes]) -> None:
    remote.write(kind, *record)


def _missing_blobs(remote: Remote, chosen: Chosen, jobs: int) -> dict[Digest, int]:
    there = remote.listed_sizes("blobs")
    if there is not None:
        return {digest: size for digest, size in chosen.blobs.items() if there.get(digest) != size}
    blobs = list(chosen.blobs.items())
    found = _parallel(lambda blob: remote.has_blob(*blob), blobs, jobs, None)
    return dict(blob for blob, is_there in zip(blobs, found, strict=True) if not is_there)


def _parallel(
    act: Callable[[T], object], items: Sequence[T], jobs: int, on_progress: OnProgress | None
) -> Iterator[object]:
    """What `act` gives for each item, in order, several at a time. The first error stops what has not begun."""
    with _pool(jobs) as pool:
        for count, result in enumerate(pool.map(act, items), 1):
            if on_progress:
                on_progress(count, len(items))
            yield result


@contextmanager
def _pool(jobs: int) -> Iterator[ThreadPoolExecutor]:
    pool = ThreadPoolExecutor(max(jobs, 1), thread_name_prefix="tkc-sync")
    try:
        yield pool
    finally:
        pool.shutdown(cancel_futures=True)
