"""Bundles: a closed set of artifacts in one file, for carrying them to another machine.

A bundle is a tar archive, gzipped if its name ends in ``gz``: first ``bundle.json``, a sealed list of every
member with its size; then the members in that order, named as in a store: blobs, manifests, signatures, refs.
Equal artifacts give equal bytes.

Reading trusts nothing. Members are never unpacked by name: each must be the very regular file that the list
announces next, its bytes go through the store's own writing of a blob or record, and everything is verified.
So links, devices, absolute names and ``..`` have nowhere to go, and what is read is bounded by the list, which
is bounded itself. Refs come last and count only once their artifact is whole.
"""

from __future__ import annotations

import gzip
import io
import re
import tarfile
import zlib
from collections.abc import Iterable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any, cast

from cache_tools.chosen import Chosen, choose
from cache_tools.selection import Selection
from tkc.cache import Miss, RefEntry, Signature, Store, Verifier
from tkc.cache.sealed import seal, unseal
from tkc.errors import StoreDamagedError, TkcError
from tkc.model import Digest, Manifest, canonical, parse_canonical

MAX_LIST_BYTES = 16 * 1024 * 1024
MAX_RECORD_BYTES = 4 * 1024 * 1024
MAX_BLOB_BYTES = 1024 * 1024 * 1024
MAX_BYTES = 16 * 10**9
"""What a bundle may hold unless the caller allows more."""

_SCHEMA = "tkc.bundle/1"
_LIST = "bundle.json"
_KINDS = ("blobs", "actions", "signatures", "refs")
_NAME = re.compile(r"(blobs|actions|signatures|refs)/([0-9a-f]{64})", re.ASCII)
_BLOCK = tarfile.BLOCKSIZE
_BAD_DATA = (EOFError, gzip.BadGzipFile, zlib.error, tarfile.TarError)


@dataclass(frozen=True, slots=True)
class Bundled:
    """What went into a bundle, or came out of one.

    Attributes:
        refs, manifests, blobs: how many.
        blob_bytes: their length.
        skipped: what was left out and why, one line each.
    """

    refs: int
    manifests: int
    blobs: int
    blob_bytes: int
    skipped: tuple[str, ...] = ()


# Writing


def export(
    store: Store, path: Path, selection: Selection | None = None, *, stages: bool = False, dry_run: bool = False
) -> Bundled:
    """Write what refs point at and `selection` chooses to a bundle at `path`, aside first and then by one rename.

    With `stages`, also the stage outputs that they were made from. Damaged artifacts are left out and reported.
    Raises TkcError if nothing is chosen or the file cannot be written.
    """
    chosen = choose(store, selection or Selection(), stages=stages)
    if not chosen.refs:
        why = f": {chosen.skipped[0]}" if chosen.skipped else ""
        raise TkcError(f"no artifact in {store.root} matches, so there is nothing to export{why}")
    if not dry_run:
        aside = path.with_name(f".{path.name}.part")
        try:
            _write(chosen, store, aside, compressed=path.suffix in {".gz", ".tgz"})
            aside.replace(path)
        except OSError as error:
            raise TkcError(f"bundle {path} cannot be written: {error.strerror or error}") from error
        finally:
            with suppress(OSError):
                aside.unlink()
    return Bundled(
        len(chosen.refs), len(chosen.manifests), len(chosen.blobs), sum(chosen.blobs.values()), chosen.skipped
    )


def _write(chosen: Chosen, store: Store, path: Path, *, compressed: bool) -> None:
    records = [(f"{kind}/{name.hex}", data) for kind, name, data in chosen.records()]
    sizes = [(f"blobs/{digest.hex}", size) for digest, size in sorted(chosen.blobs.items())]
    sizes += [(name, len(data)) for name, data in records]
    members = [{"name": name, "size_bytes": size} for name, size in sizes]
    with ExitStack() as stack:
        file: IO[bytes] = stack.enter_context(path.open("xb"))
        if compressed:
            packer = stack.enter_context(gzip.GzipFile("", "wb", compresslevel=6, fileobj=file, mtime=0))
            file = cast(IO[bytes], packer)
        archive = stack.enter_context(tarfile.open(fileobj=file, mode="w", format=tarfile.USTAR_FORMAT))
        _add(archive, _LIST, seal(canonical({"schema": _SCHEMA, "members": members})))
        for digest in sorted(chosen.blobs):
            _add(archive, f"blobs/{digest.hex}", store.read_blob(digest))
        for name, data in records:
            _add(archive, name, data)


def _add(archive: tarfile.TarFile, name: str, data: bytes) -> None:
    member = tarfile.TarInfo(name)
    member.size, member.mode = len(data), 0o444
    archive.addfile(member, io.BytesIO(data))


# Reading


def import_(
    path: Path,
    store: Store,
    *,
    max_bytes: int = MAX_BYTES,
    signers: Verifier | None = None,
    dry_run: bool = False,
) -> Bundled:
    """Take a bundle into `store`; with `dry_run`, only read and verify all of it.

    With `signers`, what none of them signed is left out and reported. Importing twice is fine. Raises
    StoreDamagedError, saying where, for anything that `export` did not write; what was taken before is whole, and
    no ref leads to what was not. Raises StoreError if the store cannot be written.
    """
    with _reading(path) as file:
        members = _read_list(file, path, max_bytes)
        taken = _Taken(store, signers, dry_run)
        for kind, name, size in members:
            taken.take(kind, name, _read_member(file, f"{kind}/{name.hex}", size))
        _read_end(file)
        return taken.finish()


@contextmanager
def _reading(path: Path) -> Iterator[IO[bytes]]:
    try:
        with ExitStack() as stack:
            file = stack.enter_context(path.open("rb"))
            if file.peek(2)[:2] == b"\x1f\x8b":
                yield cast(IO[bytes], stack.enter_context(gzip.GzipFile(fileobj=file, mode="rb")))
            else:
                yield file
    except _BAD_DATA as error:
        raise StoreDamagedError(f"bundle {path} is damaged: {error}") from error
    except OSError as error:
        raise TkcError(f"bundle {path} cannot be read: {error.strerror or error}") from error
    except _RefusedError as error:
        raise StoreDamagedError(f"bundle {path} is refused: {error}. Nothing that it names was unpacked") from error


class _RefusedError(Exception):
    """The archive is not one of ours."""


def _read_list(file: IO[bytes], path: Path, max_bytes: int) -> list[tuple[str, Digest, int]]:
    """The members that the bundle announces. Refuses more than `max_bytes`, and names that are not ours."""
    data = _read_member(file, _LIST, None)
    try:
        body = parse_canonical(unseal(data))
        if body["schema"] != _SCHEMA:
            raise _RefusedError(f"its schema is {body['schema']!r}; this tkc reads {_SCHEMA!r}")
        members = [_member(entry) for entry in body["members"]]
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise _RefusedError(f"its list cannot be read: {error}") from error
    total = sum(size for _, _, size in members)
    if total > max_bytes:
        raise _RefusedError(f"it announces {total} bytes, and {max_bytes} are allowed; see --max-size")
    if len({member[:2] for member in members}) < len(members):
        raise _RefusedError("its list names a member twice")
    order = [_KINDS.index(kind) for kind, _, _ in members]
    if order != sorted(order):
        raise _RefusedError("its list is not in the order blobs, manifests, signatures, refs")
    return members


def _member(entry: Any) -> tuple[str, Digest, int]:
    name, size = entry["name"], entry["size_bytes"]
    match = _NAME.fullmatch(name) if isinstance(name, str) else None
    if match is None:
        raise _RefusedError(f"its list names {name!r:.100}, which no store holds")
    if type(size) is not int or not 0 <= size <= (MAX_BLOB_BYTES if match[1] == "blobs" else MAX_RECORD_BYTES):
        raise _RefusedError(f"its list gives {name} the size {size!r:.30}")
    return match[1], Digest(match[2]), size


def _read_member(file: IO[bytes], name: str, size: int | None) -> bytes:
    """The bytes of the next member, which must be the regular file `name` of `size` bytes."""
    block = _read_exactly(file, _BLOCK, f"before {name}")
    header = tarfile.TarInfo.frombuf(block, "ascii", "surrogateescape")
    if header.type != tarfile.REGTYPE:
        raise _RefusedError(f"where {name} should be is a member of type {header.type!r}; only plain files are taken")
    if header.name != name:
        raise _RefusedError(f"where {name} should be is {header.name!r:.100}")
    if header.size != size if size is not None else not 0 <= header.size <= MAX_LIST_BYTES:
        raise _RefusedError(f"{name} has {header.size} bytes instead of {size if size is not None else 'a list'}")
    data = _read_exactly(file, header.size, f"inside {name}")
    _read_exactly(file, -header.size % _BLOCK, f"after {name}")
    return data


def _read_exactly(file: IO[bytes], size: int, where: str) -> bytes:
    """Exactly `size` bytes, in pieces, so that memory grows with what is there and not with what is announced."""
    pieces, left = list[bytes](), size
    while left and (piece := file.read(min(left, 1 << 20))):
        pieces.append(piece)
        left -= len(piece)
    if left:
        raise _RefusedError(f"it ends {where}")
    return b"".join(pieces)


def _read_end(file: IO[bytes]) -> None:
    mark = _read_exactly(file, 2 * _BLOCK, "before its end mark")
    rest = file.read(tarfile.RECORDSIZE)  # padding; reading past it makes gzip compare its checksum
    if (mark + rest).strip(b"\0") or file.read(1):
        raise _RefusedError("it goes on after its last member")


@dataclass
class _Taken:
    """What has been taken from a bundle so far, and may still count for nothing."""

    store: Store
    signers: Verifier | None
    dry_run: bool

    def __post_init__(self) -> None:
        self._blobs: dict[Digest, int] = {}
        self._manifests: dict[Digest, Manifest] = {}
        self._signatures: dict[Digest, Signature] = {}
        self._refs: dict[Digest, RefEntry] = {}

    def take(self, kind: str, name: Digest, data: bytes) -> None:
        """Take one member, verified. Blobs are kept at once, records until everything has been read."""
        if kind == "blobs":
            if Digest.of_bytes(data) != name:
                raise _RefusedError(f"blob {name.short} has other bytes than its name says")
            self._blobs[name] = len(data)
            if not self.dry_run:
                self.store.publish_blob(data)
            return
        try:
            self._take_record(kind, name, data)
        except ValueError as error:
            raise _RefusedError(f"{kind}/{name.short} is damaged: {error}") from error

    def finish(self) -> Bundled:
        """Make the artifacts visible: manifests whose blobs came along, then signatures and refs."""
        for manifest in self._manifests.values():
            self._require_closed(manifest)
        for ref in self._refs.values():
            if ref.key not in self._manifests:
                raise _RefusedError(f"ref {ref.request.short} points at a manifest that did not come along")
        accepted, skipped = self._accepted()
        if not self.dry_run:
            self._commit(accepted)
        return Bundled(len(accepted), len(self._manifests), len(self._blobs), sum(self._blobs.values()), tuple(skipped))

    def _take_record(self, kind: str, name: Digest, data: bytes) -> None:
        if kind == "actions":
            manifest = Manifest.from_bytes(unseal(data))
            self._manifests[_same(manifest.key, name)] = manifest
        elif kind == "signatures":
            signature = Signature.from_bytes(data)
            self._signatures[_same(signature.request, name)] = signature
        else:
            ref = RefEntry.from_bytes(unseal(data))
            self._refs[_same(ref.request, name)] = ref

    def _require_closed(self, manifest: Manifest) -> None:
        for entry in manifest.files:
            if self._blobs.get(entry.digest) != entry.size_bytes:
                raise _RefusedError(f"{entry.name} of {manifest.key.short} did not come along, or not whole")

    def _accepted(self) -> tuple[list[RefEntry], list[str]]:
        accepted, skipped = list[RefEntry](), list[str]()
        for request, ref in self._refs.items():
            signature = self._signatures.get(request, Miss("the bundle holds no signature for it", absent=True))
            manifest = self._manifests[ref.key]
            if self.signers and (complaint := self.signers.complaint(request, manifest, signature)):
                skipped.append(f"{ref.key.short} is not taken: {complaint}")
            else:
                accepted.append(ref)
        return accepted, skipped

    def _commit(self, accepted: Iterable[RefEntry]) -> None:
        refs = list(accepted)
        wanted = {ref.key for ref in refs} if self.signers else set(self._manifests)
        for key in sorted(wanted):
            self.store.commit_manifest(self._manifests[key])
        for ref in refs:
            if ref.request in self._signatures:
                self.store.write_signature(self._signatures[ref.request])
            self.store.write_ref(ref.request, ref.fields, ref.key)


def _same(inside: Digest, name: Digest) -> Digest:
    if inside != name:
        raise ValueError(f"it is the record of {inside.short}")
    return name
