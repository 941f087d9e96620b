"""Audit a wheel: everything that it claims is compared with what is in it. Needs no device and no compiler."""

from __future__ import annotations

import ast
import configparser
import email
import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from tkc.cache import Miss, RefEntry, Store
from tkc.errors import SpecError, TargetError, TkcError
from tkc.model import LOADER_ABI, Digest, KernelSpec, Manifest, ModelDims, Request, Stage, Target
from tkc.registry import Catalog, load_catalog, sources_read_once
from tkc.wheel.archive import HostileWheelError, read_wheel
from tkc.wheel.binaries import absolute_paths, library_problems
from tkc.wheel.contents import Item, WheelContents
from tkc.wheel.discover import STORES_GROUP
from tkc.wheel.licences import texts_of, verbatim
from tkc.wheel.names import MANIFEST, SBOM, STORE, WheelName
from tkc.wheel.reading import unpacked

DEFAULT_MAX_BYTES = 20_000_000
"""What a wheel may weigh unless told otherwise."""

MAX_DOCSTRING_BYTES = 10_000

CHECKS = ("archive", "tags", "files", "metadata", "store", "manifest", "binaries", "paths", "reachable", "size")
"""What is looked at, in this order."""


@dataclass(frozen=True, slots=True)
class Problem:
    """One thing that is wrong. `check` is one of `CHECKS`, `where` a member, an artifact or the wheel."""

    check: str
    where: str
    what: str

    def __str__(self) -> str:
        return f"{self.check}: {self.where}: {self.what}"


@dataclass(frozen=True, slots=True)
class Audit:
    """What an audit found.

    Attributes:
        path: the wheel.
        size_bytes: of the file.
        contents: what it says of itself; None if that cannot be read.
        problems: everything that is wrong; empty for a good wheel.
    """

    path: Path
    size_bytes: int
    contents: WheelContents | None
    problems: tuple[Problem, ...]

    @property
    def ok(self) -> bool:
        return not self.problems


def audit(path: Path, *, max_bytes: int = DEFAULT_MAX_BYTES, catalog: Catalog | None = None) -> Audit:
    """Audit the wheel at `path`. Raises TkcError if the file cannot be read; all else is a problem of the wheel.

    `catalog` (default: the one of this process) says which requests a dispatcher can make: an artifact that answers
    none of them is dead weight, or stale.
    """
    try:
        size_bytes = path.stat().st_size
        name, members = WheelName.parse(path.name), read_wheel(path)
    except ValueError as error:
        return Audit(path, size_bytes, None, (Problem("tags", path.name, str(error)),))
    except HostileWheelError as error:
        return Audit(path, size_bytes, None, (Problem("archive", path.name, str(error)),))
    except OSError as error:
        raise TkcError(f"wheel {path} cannot be read: {error.strerror or error}") from error
    problems = [*_file_problems(name, members), *_metadata_problems(name, members)]
    contents = None
    try:
        contents = WheelContents.from_bytes(members.get(f"{name.package}/{MANIFEST}", b""))
        target = Target.parse(contents.target)
    except (ValueError, TargetError) as error:
        problems.append(Problem("manifest", MANIFEST, str(error)))
    else:
        inside = _Inside(name, members, contents, target)
        try:
            with unpacked(name, members) as store:
                problems += inside.problems(store, catalog or load_catalog())
        except HostileWheelError as error:
            problems.append(Problem("archive", path.name, str(error)))
    if size_bytes > max_bytes:
        problems.append(Problem("size", path.name, f"weighs {size_bytes} bytes; the budget is {max_bytes}"))
    return Audit(path, size_bytes, contents, tuple(problems))


def _file_problems(name: WheelName, members: Mapping[str, bytes]) -> Iterator[Problem]:
    """Nothing but what such a wheel is made of: no code, no script, no file outside its two folders."""
    ours = (f"{name.package}/__init__.py", f"{name.package}/{MANIFEST}")
    info = {f"{name.dist_info}/{file}" for file in ("METADATA", "WHEEL", "RECORD", "entry_points.txt")}
    shelves = tuple(f"{name.package}/{STORE}/{bucket}-v1/" for bucket in ("blobs", "actions", "refs"))
    shelves += (f"{name.dist_info}/licenses/", f"{name.dist_info}/sboms/")
    for member in members:
        if member not in ours and member not in info and not member.startswith(shelves):
            yield Problem("files", member, "has no place in a wheel of artifacts")
    for required in (*ours, *sorted(info)):
        if required not in members:
            yield Problem("files", required, "is missing")
    if not _is_only_a_docstring(members.get(ours[0], b"")):
        yield Problem("files", ours[0], "holds code; expected a docstring and nothing else")
    for member, data in members.items():
        if not member.startswith(f"{name.package}/{STORE}/blobs") and data not in verbatim():  # licences name paths
            for path in absolute_paths(data):
                yield Problem("paths", member, f"holds the absolute path {path!r}")


def _is_only_a_docstring(data: bytes) -> bool:
    if len(data) > MAX_DOCSTRING_BYTES:
        return False
    try:
        body = ast.parse(data).body
    except (SyntaxError, ValueError, RecursionError, MemoryError):  # the last two: the parser's own stack
        return False
    return len(body) == 1 and isinstance(body[0], ast.Expr) and isinstance(body[0].value, ast.Constant)


def _metadata_problems(name: WheelName, members: Mapping[str, bytes]) -> Iterator[Problem]:
    def file(path: str) -> str:
        return members.get(f"{name.dist_info}/{path}", b"").decode("utf-8", "replace")

    wheel, metadata = email.message_from_string(file("WHEEL")), email.message_from_string(file("METADATA"))
    if wheel.get_all("Tag") != [name.tag]:
        yield Problem("tags", "WHEEL", f"says {wheel.get_all('Tag')}; the file name says {name.tag}")
    if wheel["Root-Is-Purelib"] != "false":
        yield Problem("tags", "WHEEL", f"Root-Is-Purelib is {wheel['Root-Is-Purelib']}; binaries are inside")
    if (metadata["Name"], metadata["Version"]) != (name.distribution, name.version):
        yield Problem("metadata", "METADATA", f"is of {metadata['Name']} {metadata['Version']}, not of {name.filename}")
    for text in metadata.get_all("License-File") or ["(no License-File)"]:
        if not file(f"licenses/{text}"):
            yield Problem("metadata", "METADATA", f"licence text {text} is not there")
    yield from _entry_point_problems(name, file("entry_points.txt"))
    try:
        kind = json.loads(file(f"sboms/{SBOM}"))["bomFormat"]
    except (ValueError, KeyError, TypeError, RecursionError):
        kind = None
    if kind != "CycloneDX":
        yield Problem("metadata", f"sboms/{SBOM}", "is no CycloneDX bill of materials")


def _entry_point_problems(name: WheelName, text: str) -> Iterator[Problem]:
    parser = configparser.ConfigParser(delimiters=("=",), interpolation=None)
    try:
        parser.read_string(text)
        points = {group: list(parser[group].values()) for group in parser.sections()}
    except configparser.Error as error:
        points = {"unreadable": [str(error)]}
    if points != {STORES_GROUP: [f"{name.package}:{STORE}"]}:
        yield Problem("metadata", "entry_points.txt", f"is {points}; expected one of group {STORES_GROUP}")


@dataclass(frozen=True)
class _Inside:
    """The store inside a wheel, compared with what the wheel says."""

    name: WheelName
    members: Mapping[str, bytes]
    contents: WheelContents
    target: Target

    def problems(self, store: Store, catalog: Catalog) -> Iterator[Problem]:
        yield from self._wheel_problems()
        yield from self._licence_problems()
        yield from _store_problems(store)
        items = {item.request: item for item in self.contents.items}
        for request in sorted({*items, *store.requests()}):
            yield from self._item_problems(request, items.get(request), store)
        yield from self._unreachable(catalog)

    def _wheel_problems(self) -> Iterator[Problem]:
        if self.contents.host != self.name.host:
            said, tagged = self.contents.host, self.name.host
            yield Problem("tags", MANIFEST, f"is for host {said}; the file name says {tagged}")
        if self.contents.abi != LOADER_ABI:
            yield Problem("manifest", MANIFEST, f"is for loader ABI {self.contents.abi}; this loader has {LOADER_ABI}")
        if not self.contents.items:
            yield Problem("manifest", MANIFEST, "lists no artifact")

    def _licence_problems(self) -> Iterator[Problem]:
        for text in texts_of(self.target.backend):
            if f"{self.name.dist_info}/licenses/{text}" not in self.members:
                yield Problem("metadata", "licenses", f"{text} is missing")

    def _item_problems(self, request: Digest, item: Item | None, store: Store) -> Iterator[Problem]:
        """One artifact: the wheel's manifest, the ref, the store's manifest and the library must agree."""
        if item is None:
            yield Problem("manifest", request.short, "is in the store and not in the wheel's manifest")
            return
        ref, found = store.read_ref_entry(request), store.resolve(request)
        if isinstance(ref, Miss):
            yield Problem("store", item.title, ref.reason)
            return
        if isinstance(found, Miss):
            yield Problem("store", item.title, found.reason)
            return
        if not _describes(item, ref, found.manifest):
            yield Problem("manifest", item.title, "is not the artifact that the wheel's manifest describes")
            return
        for problem in self._library_problems(item, store.read_blob(item.library)):
            yield Problem("paths" if "absolute path" in problem else "binaries", item.title, problem)

    def _library_problems(self, item: Item, data: bytes) -> Iterator[str]:
        return library_problems(
            data, host=self.name.host, glibc=self.name.glibc, target=self.target, kernels=item.kernels
        )

    def _unreachable(self, catalog: Catalog) -> Iterator[Problem]:
        """Artifacts that no call of the wheel's models leads to, with the kernels that are here."""
        try:
            reach = _Reach(catalog, self.target, self.contents, self.contents.dims())
        except ValueError as error:
            yield Problem("manifest", MANIFEST, str(error))
            return
        with sources_read_once():
            whys = [(item, reach.why_not(item)) for item in self.contents.items]
        yield from (Problem("reachable", item.title, why) for item, why in whys if why)


@dataclass(frozen=True)
class _Reach:
    """What a dispatcher can ask for: the requests of a wheel's models, with this catalogue."""

    catalog: Catalog
    target: Target
    contents: WheelContents
    dims: tuple[ModelDims, ...]
    _asked: dict[str, frozenset[Digest]] = field(default_factory=dict)

    def why_not(self, item: Item) -> str | None:
        """Why no dispatch reaches the artifact, or None if one does."""
        try:
            entry = self.catalog.find(item.fields["spec"])
            source = entry.source_digest(self.target.backend)
            if item.fields.get("source") != str(source):
                return "source changed: it was built from other source files than the kernels here have"
            if item.request not in self._requests(entry.spec, source):
                return f"no call of {', '.join(one.name for one in self.dims)} leads to it"
        except (SpecError, ValueError) as error:
            return str(error)
        return None

    def _requests(self, spec: KernelSpec, source: Digest) -> frozenset[Digest]:
        if spec.name not in self._asked:
            said = self.contents
            chosen = spec.specializations(self.dims)
            self._asked[spec.name] = frozenset(
                Request(one, source, said.target, said.host, said.abi).key for one in chosen
            )
        return self._asked[spec.name]


def _describes(item: Item, ref: RefEntry, manifest: Manifest) -> bool:
    try:
        return manifest.stage is Stage.COMPILE and item == Item.of(ref.request, ref.fields, manifest)
    except KeyError:
        return False


def _store_problems(store: Store) -> Iterator[Problem]:
    """Entries that are damaged, or that nothing leads to."""
    keys, blobs = set[Digest](), set[Digest]()
    for request in store.requests():
        if (key := store.read_ref(request)) is not None:
            keys.add(key)
    for manifest in store.iter_manifests():
        if isinstance(manifest, Miss):
            yield Problem("store", "manifest", manifest.reason)
        elif manifest.key not in keys:
            yield Problem("reachable", manifest.key.short, "is a manifest that no ref leads to")
        else:
            blobs |= {file.digest for file in manifest.files}
    for status in store.iter_blobs():
        if flaw := store.blob_flaw(status.name):
            yield Problem("store", status.name.short, flaw.reason)
        elif status.name not in blobs:
            yield Problem("reachable", status.name.short, "is a blob that no manifest names")
    for stray in store.strays():
        yield Problem("files", stray.name, "lies among the store's entries and is none")
