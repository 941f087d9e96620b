"""The store: key → files. Knows nothing of kernels.

Write aside, then rename; read, then verify. Reading creates nothing, takes no lock and removes nothing;
a lookup costs the same in a store of ten entries and of ten thousand.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tkc.cache import files
from tkc.cache.actions import Actions
from tkc.cache.blobs import Blobs
from tkc.cache.bucket import Bucket, EntryStatus, Miss
from tkc.cache.layout import Layout
from tkc.cache.quarantine import Quarantine
from tkc.cache.refs import RefEntry, Refs
from tkc.cache.staging import Staging
from tkc.cache.stamps import stale_stamps
from tkc.cache.trust import Trust
from tkc.errors import StoreDamagedError, StoreReadOnlyError
from tkc.model import Digest, FileEntry, Manifest, manifest_of

if TYPE_CHECKING:
    from tkc.cache.locks import OnWait
    from tkc.cache.misses import MissLog
    from tkc.cache.pins import Pin, Pins
    from tkc.cache.signatures import Signature, Signatures, Verifier
    from tkc.model import Action

MAX_LOG_CHARS = 1_000_000


@dataclass(frozen=True, slots=True)
class Hit:
    """An artifact of which every blob was there and verified. Truthy.

    Attributes:
        manifest: what it is.
        store: where it is.
        skipped: reasons of the layers that were asked before, one line each.
    """

    manifest: Manifest
    store: Store
    skipped: tuple[str, ...] = ()

    def path(self, name: str) -> Path:
        """Where the bytes of the file called `name` are. Raises KeyError if the artifact has none."""
        return self.store.blob_path(self.manifest.file(name).digest)


class Store:
    """A content-addressed store of artifacts at `root`, which need not exist.

    Args:
        root: its folder.
        writable: whether this process may change it. The first write makes the folders.
        trusted: load from it whoever owns it; for a store inside an installed package, whose code this
            process runs already. Any other store must belong to this user or to root, and be writable
            by its owner alone: else every read raises StoreError.
        signers: if given, a request is only answered by what one of them signed.
    """

    def __init__(
        self, root: Path, *, writable: bool = False, trusted: bool = False, signers: Verifier | None = None
    ) -> None:
        self.root = root.absolute()
        self.writable = writable
        self._layout = layout = Layout(root)
        self._staging = Staging(layout.staging)
        self._staging_cleaned = False
        self._trust = trust = Trust(layout.root, trusted=trusted)
        aside = (self._staging, Quarantine(layout.quarantine)) if writable else (None, None)
        self._signers = signers
        self._blob_bucket = Bucket("blob", layout.blobs, layout.blob, trust, *aside)
        self._action_bucket = Bucket("manifest", layout.actions, layout.action, trust, *aside)
        self._ref_bucket = Bucket("ref", layout.refs, layout.ref, trust, *aside)
        self._blobs = Blobs(self._blob_bucket)
        self._actions = Actions(self._action_bucket)
        self._refs = Refs(self._ref_bucket)
        self._pin_bucket = Bucket("pin", layout.pins, layout.pin, trust, *aside)
        self._signature_bucket = Bucket("signature", layout.signatures, layout.signature, trust, *aside)

    def __repr__(self) -> str:
        return f"Store({str(self.root)!r}, writable={self.writable})"

    # What most lookups do without is imported when it is first used.

    @cached_property
    def _pins(self) -> Pins:
        from tkc.cache.pins import Pins

        return Pins(self._pin_bucket)

    @cached_property
    def _signatures(self) -> Signatures:
        from tkc.cache.signatures import Signatures

        return Signatures(self._signature_bucket)

    # Reading

    def lookup(self, key: Digest) -> Hit | Miss:
        """Return the artifact of the action with this key, or the reason there is none.

        A hit means that every blob is there and was verified just now. Missing and damaged entries are
        misses; a writable store moves a damaged one to quarantine, and notes once an hour that the artifact
        is in use. Raises StoreError if the store as a whole cannot be examined, or others could have written
        it. Takes no lock.
        """
        manifest = self._actions.use(key)
        return manifest if isinstance(manifest, Miss) else self._with_blobs(manifest)

    def _with_blobs(self, manifest: Manifest) -> Hit | Miss:
        for entry in manifest.files:
            flaw = self._blobs.flaw(entry.digest, entry.size_bytes)
            if flaw is not None:
                return replace(flaw, reason=f"{entry.name} of {manifest.key.short}: {flaw.reason}")
        return Hit(manifest, self)

    def resolve(self, request: Digest) -> Hit | Miss:
        """Return the artifact that answers `request`, or the reason there is none; otherwise as `lookup`."""
        manifest = self.find(request)
        return manifest if isinstance(manifest, Miss) else self._with_blobs(manifest)

    def find(self, request: Digest) -> Manifest | Miss:
        """Return the manifest that answers `request`, alone: nothing is said about its blobs."""
        ref = self._refs.read(request)
        if isinstance(ref, Miss):
            return ref
        manifest = self._actions.use(ref.key)
        if isinstance(manifest, Miss) or self._signers is None:
            return manifest
        complaint = self._signers.complaint(request, manifest, self._signatures.read(request))
        return Miss(f"manifest {ref.key.short} is not loaded: {complaint}") if complaint else manifest

    def read_ref(self, request: Digest) -> Digest | None:
        """Return the key of the action that `request` points to; None if no readable ref does."""
        ref = self._refs.read(request)
        return None if isinstance(ref, Miss) else ref.key

    def read_ref_entry(self, request: Digest) -> RefEntry | Miss:
        """Return the ref itself, or why there is none."""
        return self._refs.read(request)

    def read_signature(self, request: Digest) -> Signature | Miss:
        """Return the signature of what answers `request`, unverified, or why there is none."""
        return self._signatures.read(request)

    def read_manifest(self, key: Digest) -> Manifest | Miss:
        """Return the manifest alone: nothing is said about its blobs."""
        return self._actions.read(key)

    def read_blob(self, digest: Digest, size_bytes: int | None = None) -> bytes:
        """Return the blob's bytes, verified. Raises StoreDamagedError if they are not there or not right."""
        data = self._blobs.read(digest)
        if isinstance(data, Miss) or (size_bytes is not None and len(data) != size_bytes):
            reason = data.reason if isinstance(data, Miss) else f"blob {digest.short} has not {size_bytes} bytes"
            raise StoreDamagedError(f"store {self.root}: {reason}. Build again what needs it")
        return data

    def blob_flaw(self, digest: Digest) -> Miss | None:
        """Return why the blob cannot be used, or None if it is there and verified just now."""
        data = self._blobs.read(digest)
        return data if isinstance(data, Miss) else None

    def blob_path(self, digest: Digest) -> Path:
        """Where the blob is, if it is here."""
        return Path(self._layout.blob(digest))

    # Writing

    def require_writable(self) -> None:
        """Raise StoreReadOnlyError or StoreFullError unless something can be written here; makes the root."""
        self._refuse_read_only()
        with files.writing(self._layout.root), self._staging.folder():
            pass

    @contextmanager
    def stage(self) -> Iterator[Path]:
        """Give a private folder on the store's file system, removed afterwards.

        The first call of a process also removes what killed builds left. Raises StoreReadOnlyError or
        StoreFullError if there can be no folder; what the block raises passes through.
        """
        self._refuse_read_only()
        if not self._staging_cleaned:
            self._staging_cleaned = True
            self._staging.clean()
        with ExitStack() as stack:
            with files.writing(self._layout.root):
                folder = stack.enter_context(self._staging.folder())
            yield folder

    def commit(
        self,
        action: Action,
        folder: Path,
        names: Sequence[str],
        *,
        facts: Mapping[str, Any],
        inputs: Sequence[Digest] = (),
        provenance: Mapping[str, str] | None = None,
    ) -> Manifest:
        """Make what `action` produced visible: the blobs, then the manifest. Return the manifest.

        `names` are files inside `folder`, which may be on any file system: bytes are read once, and those
        very bytes are hashed and published. Committing the same key twice is fine, and so is losing a race:
        a good entry stays, and what is returned describes the caller's own bytes, which are in the store
        either way.

        Raises StoreReadOnlyError, StoreFullError or StoreError, after which nothing half-made is visible;
        FileNotFoundError if a named file was not produced; ValueError for a name that is no plain name.
        """
        self._refuse_read_only()
        contents = {name: (folder / name).read_bytes() for name in names}
        entries = tuple(FileEntry(name, Digest.of_bytes(data), len(data)) for name, data in contents.items())
        made = manifest_of(action, entries, facts=facts, inputs=tuple(inputs), provenance=dict(provenance or {}))
        manifest = Manifest.from_bytes(made.to_bytes())
        with files.writing(self._layout.root):
            for data in contents.values():
                self._blobs.publish(data)
        return self.commit_manifest(manifest)

    def commit_manifest(self, manifest: Manifest) -> Manifest:
        """Make a manifest visible whose blobs are here already, and return it; otherwise as `commit`."""
        self._refuse_read_only()
        with files.writing(self._layout.root):
            self._actions.publish(manifest, is_good=lambda: bool(self.lookup(manifest.key)))
        return manifest

    def publish_blob(self, data: bytes) -> Digest:
        """Keep `data` as a blob, and return its digest; otherwise as `commit`.

        For what copies artifacts between stores. Until a manifest names it, only gc's grace period keeps it.
        """
        self._refuse_read_only()
        with files.writing(self._layout.root):
            return self._blobs.publish(data)

    def write_ref(self, request: Digest, fields: Mapping[str, Any], key: Digest) -> None:
        """Let `request`, whose fields these are, be answered by the action with this key.

        Replaces what it pointed at, by one rename. Raises StoreReadOnlyError, StoreFullError or StoreError.
        """
        self._refuse_read_only()
        with files.writing(self._layout.root):
            self._refs.write(RefEntry(request, key, fields))

    def write_signature(self, signature: Signature) -> None:
        """Keep a signature, unverified, in place of an earlier one for its request; otherwise as `write_ref`."""
        self._refuse_read_only()
        with files.writing(self._layout.root):
            self._signatures.write(signature)

    def write_index(self, data: bytes) -> None:
        """Show the index of all refs, for a server that lists nothing; no lookup reads it."""
        self._refuse_read_only()
        with files.writing(self._layout.root), self._staging.file(data) as aside:
            files.show(aside, self._layout.index)

    def pin(self, key: Digest, note: str = "") -> None:
        """Keep an action's artifact, whatever prune is told; otherwise as `write_ref`."""
        from tkc.cache.pins import Pin

        self._refuse_read_only()
        with files.writing(self._layout.root):
            self._pins.add(Pin(key, note))

    def unpin(self, key: Digest) -> bool:
        """Take a pin back; whether there was one."""
        self._refuse_read_only()
        with files.writing(self._layout.root):
            return self._pins.remove(key)

    def lock(self, key: Digest, *, on_wait: OnWait | None = None) -> AbstractContextManager[bool]:
        """Keep others from compiling `key` at the same time, where locks work; yields whether it is held.

        Never needed for correctness, and never fails: see `tkc.cache.locks`.
        """
        from tkc.cache import locks

        return locks.hold(self._layout.lock(key), on_wait=on_wait) if self.writable else nullcontext(False)

    def keep_log(self, key: Digest, text: str) -> Path:
        """Keep the output of a failed compile, its end if it is long, and say where."""
        self._refuse_read_only()
        path = self._layout.log(key)
        with files.writing(self._layout.root), self._staging.file(text[-MAX_LOG_CHARS:].encode()) as aside:
            files.show(aside, path)
        return Path(path)

    # Removing: for maintenance alone, never part of a read. Each entry goes by one rename.

    def remove_ref(self, request: Digest) -> bool:
        """Remove a ref, and its signature; whether it was there.

        Marks the manifest that it pointed at as just used, so that gc's grace period begins now: whoever read
        the ref before may be loading.
        """
        self._refuse_read_only()
        ref = self._refs.read(request)
        with files.writing(self._layout.root):
            if isinstance(ref, RefEntry):
                files.touch(self._layout.action(ref.key))
            self._signatures.remove(request)
            return self._ref_bucket.remove(request)

    def remove_manifest(self, key: Digest, *, untouched_since_s: float = math.inf) -> bool:
        """Remove a manifest unless it was in use since then; whether it is gone by this call."""
        self._refuse_read_only()
        with files.writing(self._layout.root):
            return self._action_bucket.remove(key, untouched_since_s=untouched_since_s)

    def remove_blob(self, digest: Digest, *, untouched_since_s: float = math.inf) -> bool:
        """Remove a blob unless it was in use since then; whether it is gone by this call."""
        self._refuse_read_only()
        with files.writing(self._layout.root):
            return self._blob_bucket.remove(digest, untouched_since_s=untouched_since_s)

    def clock_s(self) -> float:
        """Now, by the clock that gives this store's files their times; a server's, if it is on one."""
        self._refuse_read_only()
        with files.writing(self._layout.root), self._staging.folder() as folder:
            return folder.stat().st_mtime

    @property
    def log_dir(self) -> Path:
        """Where `keep_log` puts logs."""
        return Path(self._layout.logs)

    @property
    def stamps_dir(self) -> Path | None:
        """Where stamps of installed tools may be kept; None if nothing may be written."""
        return Path(self._layout.stamps) if self.writable else None

    def stale_stamps(self, tools: Collection[Digest], *, unused_since_s: float) -> Iterator[Path]:
        """Stamps older than that which stand for none of `tools`; whoever removes one costs a build time alone."""
        return stale_stamps(self._layout.stamps, tools, unused_since_s=unused_since_s)

    @property
    def miss_log(self) -> MissLog:
        """The store's miss log."""
        from tkc.cache.misses import MissLog

        return MissLog(Path(self._layout.miss_log))

    def clean_staging(self) -> int:
        """Remove what builds that no longer run left behind; how many. Never part of a read."""
        return self._staging.clean() if self.writable else 0

    def _refuse_read_only(self) -> None:
        if not self.writable:
            raise StoreReadOnlyError(f"store {self.root} is a read-only layer. Write to the user store (TKC_CACHE_DIR)")

    # Listing: lazy, and tolerant of entries that are damaged or vanish meanwhile

    def refs(self) -> Iterator[RefEntry]:
        """Every readable ref."""
        return (ref for request in self.requests() if isinstance(ref := self._refs.read(request), RefEntry))

    def iter_manifests(self) -> Iterator[Manifest | Miss]:
        """Every manifest, or why it cannot be read. Their blobs are not looked at."""
        return (self._actions.read(key) for key in self.keys())

    def iter_blobs(self) -> Iterator[EntryStatus]:
        """Every blob, unverified."""
        return self._blob_bucket.statuses()

    def manifest_statuses(self) -> Iterator[EntryStatus]:
        """Every manifest as a file, unread."""
        return self._action_bucket.statuses()

    def ref_statuses(self) -> Iterator[EntryStatus]:
        """Every ref as a file, unread."""
        return self._ref_bucket.statuses()

    def pins(self) -> Iterator[Pin]:
        """Every pin."""
        return iter(self._pins)

    def requests(self) -> Iterator[Digest]:
        """The name of every ref, readable or not."""
        return (name for name, _ in self._ref_bucket.entries())

    def keys(self) -> Iterator[Digest]:
        """The key of every manifest, readable or not."""
        return (name for name, _ in self._action_bucket.entries())

    def strays(self) -> Iterator[Path]:
        """Whatever lies among the entries and is none: nothing reads it, and no gc removes it."""
        for bucket in (self._blob_bucket, self._action_bucket, self._ref_bucket):
            yield from map(Path, bucket.strays())

    def is_there(self) -> bool:
        """Whether its folder is. Raises StoreError if that cannot be examined, or others could have written it."""
        return self._trust.require(self._layout.root)

    def describe(self) -> str:
        """Say where the store is, what may be done with it and what it holds; changes nothing.

        Raises StoreError if nothing may be loaded from it.
        """
        present = [self._trust.require(folder) for folder in self._layout.entry_folders]
        use = "writable" if self.writable else "read-only"
        if not any(present):
            return f"{self.root} ({use}), empty"
        manifests, refs = sum(1 for _ in self.keys()), sum(1 for _ in self.requests())
        return f"{self.root} ({use}), {manifests} manifests, {refs} refs"
