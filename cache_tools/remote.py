"""A store somewhere else: any address that fsspec understands, such as ``s3://bucket/tkc`` or ``https://host/tkc``.

It is laid out like a store, so that a folder which a web server shows is a remote. It is only data: what
arrives is verified before anything of it counts, and only the local copy is ever loaded. Nothing is listed to
read from it: a ref, a manifest and blobs are asked for by name. `push` also writes an index of the refs, for
`pull`, since a web server cannot be asked what it has.
"""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable, Iterable
from contextlib import suppress
from functools import cached_property, partial
from pathlib import Path
from typing import Any, TypeVar

from cache_tools.transfer import Copied, Source, copy_files, copy_request
from tkc.cache import Hit, Miss, RefEntry, Signature, Store, Verifier
from tkc.cache.layout import Layout, digest_in_name
from tkc.cache.sealed import seal, unseal
from tkc.config import Settings
from tkc.errors import StoreDamagedError, StoreError
from tkc.model import Digest, Manifest, canonical, parse_canonical

CHUNK_BYTES = 8 * 1024 * 1024
"""What a cut connection costs at most: a blob is read in pieces, and each piece is asked for again."""
ATTEMPTS = 4
FIRST_PAUSE_S = 0.2
DOWN_S = 60.0
"""How long a remote that did not answer is left alone by loads, which would wait for it again and again."""

_INDEX = "index-v1/refs.json"
_INDEX_SCHEMA = "tkc.index/1"
_MAX_INDEX_WRITES = 8

T = TypeVar("T")


class Remote:
    """A store at an fsspec address. Touches nothing, and imports nothing heavy, until it is asked.

    Args:
        address: where it is. Credentials and endpoints come from the environment, as fsspec and its backends
            read them.
        signers: if given, `fetch` takes only what one of them signed.
    """

    def __init__(self, address: str, *, signers: Verifier | None = None) -> None:
        self.address = address.rstrip("/")
        self._signers = signers
        self._layout = Layout(Path("/"))
        self._down_until_s = 0.0
        self._pid = os.getpid()

    def __str__(self) -> str:
        return self.address

    # Read-through

    def fetch(self, request: Digest, into: Store) -> Hit | Miss:
        """Copy what answers `request` to `into`, a writable store, and return it; or why there is none.

        Never raises for the remote: what it does not have, what arrives damaged or unsigned and a remote that
        does not answer are misses. After the last, it is left alone for a minute.
        """
        return self._fetch(lambda: copy_request(self, request, into, signers=self._signers), into)

    def fetch_action(self, key: Digest, request: Digest, into: Store) -> Hit | Miss:
        """As `fetch`, for the artifact of the action with this key, whatever the remote's ref points at now.

        `request` names the signature that vouches for it, if signatures are required. Writes no ref.
        """
        return self._fetch(lambda: self._copy_action(key, request, into), into)

    def _copy_action(self, key: Digest, request: Digest, into: Store) -> Copied | Miss:
        manifest = self.read_manifest(key)
        if isinstance(manifest, Miss):
            return manifest
        signature = self.read_signature(request)
        if self._signers and (complaint := self._signers.complaint(request, manifest, signature)):
            return Miss(f"{key.short} is not taken: {complaint}")
        return copy_files(self, manifest, into)

    def _fetch(self, copy: Callable[[], Copied | Miss], into: Store) -> Hit | Miss:
        if time.monotonic() < self._down_until_s:
            return Miss(f"{self}: not asked, since it did not answer a moment ago")
        try:
            copied = copy()
        except RemoteUnreachableError as error:
            self._down_until_s = time.monotonic() + DOWN_S
            return Miss(str(error))
        except StoreDamagedError as error:
            return Miss(str(error), damaged=True)
        return Miss(f"{self}: {copied.reason}") if isinstance(copied, Miss) else Hit(copied.manifest, into)

    # Reading: verified, as a Source

    def read_ref_entry(self, request: Digest) -> RefEntry | Miss:
        """The ref that answers `request`, or why there is none."""
        return self._record("ref", self._layout.ref(request), lambda data: _named(RefEntry, "request", data, request))

    def read_manifest(self, key: Digest) -> Manifest | Miss:
        """The manifest of the action with this key, or why there is none."""
        return self._record("manifest", self._layout.action(key), lambda data: _named(Manifest, "key", data, key))

    def read_signature(self, request: Digest) -> Signature | Miss:
        """The signature of what answers `request`, unverified, or why there is none."""
        return self._record("signature", self._layout.signature(request), Signature.from_bytes)

    def read_blob(self, digest: Digest, size_bytes: int | None = None) -> bytes:
        """The blob, verified; asked for once more if other bytes arrive. Raises StoreDamagedError."""
        path = self._layout.blob(digest)
        for _ in range(2):
            data = self._read(path, size_bytes)
            if data is None:
                raise StoreDamagedError(f"{self}: blob {digest.short} is not there")
            if Digest.of_bytes(data) == digest:
                return data
        raise StoreDamagedError(f"{self}: blob {digest.short} is damaged: what arrives has another digest")

    def refs(self) -> list[RefEntry]:
        """What the index names. Raises StoreError if there is no index and the remote cannot be listed."""
        data = self._read(_INDEX, None)
        if data is not None:
            return parse_index(data, str(self))
        if not self._can_list:
            raise StoreError(
                f"{self} has no index ({_INDEX}), and it cannot be asked what it holds. `tkc cache push` writes one"
            )
        found = (self.read_ref_entry(request) for request in self._listed("refs-v1"))
        return [ref for ref in found if isinstance(ref, RefEntry)]

    # Writing

    def listed_sizes(self, kind: str) -> dict[Digest, int] | None:
        """Sizes of the entries of a kind, such as ``blobs``; None where there is no listing."""
        return self._listed(f"{kind}-v1") if self._can_list else None

    def write(self, kind: str, name: Digest, data: bytes) -> None:
        """Put an entry in place. Raises RemoteUnreachableError."""
        paths = {
            "blobs": self._layout.blob,
            "actions": self._layout.action,
            "signatures": self._layout.signature,
            "refs": self._layout.ref,
        }
        self._write(paths[kind](name), data)

    def has_blob(self, digest: Digest, size_bytes: int) -> bool:
        """Whether a blob of that size is there; for where there is no listing."""
        path = self._full(self._layout.blob(digest))
        try:
            return bool(self._try(lambda: self._system.info(path)).get("size") == size_bytes)
        except FileNotFoundError:
            return False

    def write_index(self, refs: Iterable[RefEntry]) -> int:
        """Add `refs` to the index; how many it names then.

        Where the remote can be listed, the listing decides, and is looked at again after the index was written:
        of two that push at once, the last to write sees both.
        """
        known = {ref.request: ref for ref in self._indexed()} | {ref.request: ref for ref in refs}
        for _ in range(_MAX_INDEX_WRITES):
            self._write(_INDEX, index_bytes(known.values()))
            if not self._can_list or not (missing := set(self._listed("refs-v1")) - set(known)):
                break
            found = {request: self.read_ref_entry(request) for request in missing}
            known |= {request: ref for request, ref in found.items() if isinstance(ref, RefEntry)}
            if not any(isinstance(ref, RefEntry) for ref in found.values()):
                break
        return len(known)

    # How bytes travel

    def _record(self, kind: str, path: str, parse: Callable[[bytes], T]) -> T | Miss:
        data = self._read(path, None)
        if data is None:
            return Miss(f"{kind} {Path(path).stem[:12]} is not there", absent=True)
        try:
            return parse(data)
        except ValueError as error:
            return Miss(f"{kind} {Path(path).stem[:12]} is damaged: {error}", damaged=True)

    def _read(self, path: str, size_bytes: int | None) -> bytes | None:
        full = self._full(path)
        try:
            if size_bytes is None or size_bytes <= CHUNK_BYTES:
                return bytes(self._try(lambda: self._system.cat_file(full)))
            return self._read_in_pieces(full, size_bytes)
        except FileNotFoundError:
            return None

    def _read_in_pieces(self, full: str, size_bytes: int) -> bytes:
        pieces = bytearray()
        while len(pieces) < size_bytes:
            start, end = len(pieces), min(len(pieces) + CHUNK_BYTES, size_bytes)
            piece = self._try(partial(self._system.cat_file, full, start=start, end=end))
            if len(piece) > end - start:
                return bytes(piece)  # a server that knows no ranges sends everything
            if not piece:
                break
            pieces += piece
        return bytes(pieces)

    def _write(self, path: str, data: bytes) -> None:
        full = self._full(path)
        try:
            self._try(lambda: self._system.pipe_file(full, data))
        except FileNotFoundError as error:
            raise RemoteUnreachableError(f"{self} cannot be written: {error}. Does it exist?") from error

    def _listed(self, folder: str) -> dict[Digest, int]:
        full = self._full(folder)
        try:
            found = self._try(lambda: self._system.find(full, detail=True))
        except FileNotFoundError:
            return {}
        named = ((digest_in_name(Path(path).name), entry) for path, entry in found.items())
        return {name: int(entry["size"]) for name, entry in named if name is not None}

    def _indexed(self) -> list[RefEntry]:
        data = self._read(_INDEX, None)
        with suppress(StoreDamagedError):
            return parse_index(data, str(self)) if data is not None else []
        return []

    def _try(self, act: Callable[[], T]) -> T:
        """Do `act`, again after a pause if the connection broke. Raises FileNotFoundError or RemoteUnreachableError."""
        pause_s = FIRST_PAUSE_S
        for attempt in range(1, ATTEMPTS + 1):
            try:
                return act()
            except FileNotFoundError:
                raise
            except _transport_errors() as error:
                if attempt == ATTEMPTS or isinstance(error, PermissionError):
                    raise RemoteUnreachableError(f"{self} does not answer: {type(error).__name__}: {error}") from error
            time.sleep(pause_s)
            pause_s *= 2
        raise AssertionError("unreachable")

    def _full(self, path: str) -> str:
        return f"{self._root}/{path.lstrip('/')}"

    @property
    def _system(self) -> Any:
        if self._pid != os.getpid():  # connections and the thread that serves them are the parent's
            self.__dict__.pop("_opened", None)
            self._pid = os.getpid()
        return self._opened[0]

    @property
    def _root(self) -> str:
        return self._opened[1]

    @cached_property
    def _opened(self) -> tuple[Any, str]:
        try:
            from fsspec.core import url_to_fs
        except ModuleNotFoundError as error:
            raise StoreError(
                f"{self.address} is a remote, which needs fsspec. Install it: pip install 'tilelang-tkc[remote]'"
            ) from error
        try:
            system, root = url_to_fs(self.address, skip_instance_cache=True, **_options(self.address))
        except (ImportError, ValueError) as error:
            raise StoreError(
                f"{self.address} cannot be opened: {error}. S3 and HTTP need: pip install 'tilelang-tkc[remote]'"
            ) from error
        return system, str(root).rstrip("/")

    @property
    def _can_list(self) -> bool:
        return not self.address.startswith(("http://", "https://"))


class RemoteUnreachableError(StoreError):
    """A remote does not answer, or refuses."""


def open_source(address: str) -> Source | Remote:
    """What artifacts can be copied from: a store for a local folder, a remote for any other address."""
    folder = local_folder(address)
    return Store(folder) if folder else Remote(address)


def local_folder(address: str) -> Path | None:
    """The folder that an address means; None if it is not on this machine's file systems."""
    if address.startswith("file://"):
        return Path(address.removeprefix("file://")).absolute()
    return None if "://" in address or "::" in address else Path(address).absolute()


def remote_from(settings: Settings) -> Remote | None:
    """The remote that the environment configures (``TKC_REMOTE``); None if it configures none."""
    return Remote(settings.remote, signers=signers_from(settings)) if settings.remote else None


def signers_from(settings: Settings) -> Verifier | None:
    """Whom the environment trusts (``TKC_REQUIRE_SIGNATURE``); None if it requires no signatures."""
    from tkc.cache import Signers

    return Signers(settings.signers) if settings.signers else None


def index_bytes(refs: Iterable[RefEntry]) -> bytes:
    """The written form of an index of `refs`."""
    entries = [
        {"request": ref.request, "key": ref.key, "fields": ref.fields}
        for ref in sorted(refs, key=lambda ref: ref.request)
    ]
    return seal(canonical({"schema": _INDEX_SCHEMA, "refs": entries}))


def parse_index(data: bytes, where: str) -> list[RefEntry]:
    """The refs in an index. Raises StoreDamagedError for anything that `index_bytes` did not write."""
    try:
        body = parse_canonical(unseal(data))
        if body["schema"] != _INDEX_SCHEMA:
            raise ValueError(f"it has schema {body['schema']!r}; this tkc reads {_INDEX_SCHEMA!r}")
        return [
            RefEntry(Digest.parse(one["request"]), Digest.parse(one["key"]), dict(one["fields"]))
            for one in body["refs"]
        ]
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise StoreDamagedError(f"{where}: the index is damaged: {error}. `tkc cache push` writes it anew") from error


def _named(record: Any, field: str, data: bytes, name: Digest) -> Any:
    parsed = record.from_bytes(unseal(data))
    if getattr(parsed, field) != name:
        raise ValueError(f"it is the record of {getattr(parsed, field).short}")
    return parsed


def _options(address: str) -> dict[str, Any]:
    """Time limits: a connection that is silent is a broken one, and a job may be waiting."""
    if address.startswith(("http://", "https://")):
        from aiohttp import ClientTimeout

        return {"client_kwargs": {"timeout": ClientTimeout(total=None, sock_connect=10, sock_read=30)}}
    if address.startswith("s3://"):
        limits = {"connect_timeout": 10, "read_timeout": 30, "retries": {"max_attempts": 1}}
        return {"config_kwargs": limits, "use_listings_cache": False}
    return {}


def _transport_errors() -> tuple[type[Exception], ...]:
    """What the backends that are loaded raise when a connection fails; not all of it is an OSError."""
    found: list[type[Exception]] = [OSError]
    if (aiohttp := sys.modules.get("aiohttp")) is not None:
        found.append(aiohttp.ClientError)
    if (botocore := sys.modules.get("botocore.exceptions")) is not None:
        found += [botocore.BotoCoreError, botocore.ClientError, botocore.HTTPClientError]
    return tuple(found)
