"""What is fuzzed. Each target makes, in a private folder, a function that takes any bytes and must survive them.

To survive is to give a value or to raise the one kind of error that the parser's docstring names. The bytes are also
put where a digest would hide the interior from chance: harnesses seal records, hash blobs and write RECORD anew.
"""

from __future__ import annotations

import io
import json
import shutil
import tarfile
import warnings
import zipfile
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

from cache_tools.bundle import export, import_
from cache_tools.chosen import choose
from cache_tools.fsck import fsck
from cache_tools.gc import gc
from cache_tools.misses import misses
from cache_tools.prune import Policy, prune
from cache_tools.remote import index_bytes, parse_index
from cache_tools.selection import Selection
from cache_tools.sync import pull
from cache_tools.usage import usage
from tests.cache_tools.helpers import make, request_of
from tests.fuzz.fuzzed import Fuzzed, Try
from tests.fuzz.wheels import zipped
from tkc.cache import Hit, MissLog, RefEntry, Signature, Store
from tkc.cache.layout import Layout
from tkc.cache.owner import Owner
from tkc.cache.sealed import seal, unseal
from tkc.compiler.resources import read_cubin
from tkc.errors import StoreDamagedError, StoreError, TkcError
from tkc.model import Digest, Manifest, Target
from tkc.registry import load_catalog
from tkc.wheel.audit import audit
from tkc.wheel.binaries import library_problems
from tkc.wheel.contents import WheelContents
from tkc.wheel.discover import installed_stores

_EM_CUDA = b"\xbe\0"


def manifest(folder: Path, _wheel: Path) -> Fuzzed:
    """Manifests, and that what was read is written and read the same."""
    made = make(Store(folder / "store", writable=True), "one")

    def try_one(data: bytes) -> None:
        try:
            found = Manifest.from_bytes(data)
        except ValueError:
            return
        assert Manifest.from_bytes(found.to_bytes()) == found
        assert all("/" not in entry.name and entry.name not in ("", ".", "..") for entry in found.files)

    return Fuzzed([made.to_bytes()], try_one)


def ref(folder: Path, _wheel: Path) -> Fuzzed:
    """Refs, likewise."""
    request = request_of("one")

    def try_one(data: bytes) -> None:
        try:
            found = RefEntry.from_bytes(data)
        except ValueError:
            return
        assert RefEntry.from_bytes(found.to_bytes()) == found

    return Fuzzed([RefEntry(request.key, request.key, request.fields()).to_bytes()], try_one)


def records(folder: Path, _wheel: Path) -> Fuzzed:
    """The small records: signatures, indexes of remotes, owners of locks, the manifests of wheels, miss logs."""
    request = request_of("one")
    log = MissLog(folder / "misses.jsonl")
    log.append({"spec": "a.b", "specialization": {"x": 1}, "target": "cpu", "host": "x86_64", "reasons": ["r"]})
    line = log.path.read_bytes()

    def read_log(data: bytes) -> None:
        log.path.write_bytes(data)
        assert misses(log).damaged_lines >= 0

    parsers: list[tuple[Try, type[Exception], bytes]] = [
        (lambda data: void(Signature.from_bytes(seal(data))), ValueError, _signature_body()),
        (
            lambda data: void(parse_index(seal(data), "here")),
            StoreDamagedError,
            unseal(index_bytes([RefEntry(request.key, request.key, request.fields())])),
        ),
        (lambda data: void(Owner.from_bytes(data)), NotImplementedError, Owner.current().to_bytes()),
        (lambda data: void(WheelContents.from_bytes(data)), ValueError, b"{}"),
        (read_log, NotImplementedError, line),
    ]

    def try_one(data: bytes) -> None:
        parse, refused, _ = parsers[data[0] % len(parsers) if data else 0]
        with suppress(refused):
            parse(data[1:])

    return Fuzzed([bytes([number]) + seed for number, (_, _, seed) in enumerate(parsers)], try_one)


def store(folder: Path, _wheel: Path) -> Fuzzed:
    """A store with one record replaced, sealed as if it were good, and every tool that looks at it."""
    good = Store(folder / "good", writable=True)
    key = make(good, "one").key
    good.pin(key, "note")
    request = request_of("one").key
    layout = Layout(folder / "store")
    paths = [layout.action(key), layout.ref(request), layout.pin(key), layout.signature(request)]
    bodies = [unseal(Path(path.replace("/store/", "/good/")).read_bytes()) for path in paths[:3]]

    def try_one(data: bytes) -> None:
        shutil.rmtree(folder / "store", ignore_errors=True)
        shutil.copytree(folder / "good", folder / "store")
        path = Path(paths[data[0] % len(paths) if data else 0])
        path.parent.mkdir(parents=True, exist_ok=True)
        path.unlink(missing_ok=True)
        path.write_bytes(seal(data[1:]))
        look_at(Store(folder / "store"), request, folder)
        make(Store(folder / "store", writable=True), "one")
        assert isinstance(good.resolve(request), Hit)

    return Fuzzed([bytes([number]) + body for number, body in enumerate(bodies)], try_one)


def look_at(one: Store, request: Digest, folder: Path) -> None:
    """What the tools do with a store; they may say that it is damaged."""
    if found := one.resolve(request):
        assert all(found.path(entry.name).is_relative_to(one.root) for entry in found.manifest.files)
    usage(one, now_s=0.0)
    fsck(one)
    with suppress(StoreError):
        gc(one, dry_run=True)
    prune(one, Policy(Selection(specs=("moe",), toolchains=("tilelang=0.1.15",)), unused_s=0.0), dry_run=True)
    choose(one, Selection(targets=("cpu",)))
    shutil.rmtree(folder / "pulled", ignore_errors=True)
    with suppress(StoreError):
        pull(one, Store(folder / "pulled", writable=True), jobs=1)


def bundle(folder: Path, _wheel: Path) -> Fuzzed:
    """The bytes of a bundle, gzipped or not."""
    seeds = list(_bundles(folder))

    def try_one(data: bytes) -> None:
        path = folder / "any.tar"
        path.write_bytes(data)
        with suppress(StoreDamagedError):
            import_(path, Store(folder / "taken", writable=True), max_bytes=1 << 24)

    return Fuzzed(seeds, try_one)


def bundle_members(folder: Path, _wheel: Path) -> Fuzzed:
    """A bundle that announces exactly what is in it: one member of any content, under the digest of it or any name."""
    (plain, _) = _bundles(folder)
    with tarfile.open(fileobj=io.BytesIO(plain)) as archive:
        members = {member.name: _read(archive, member) for member in archive.getmembers()[1:]}
    names = list(members)

    def try_one(data: bytes) -> None:
        if len(data) < 2:
            return
        changed, name = dict(members), names[data[0] % len(names)]
        body = data[2:] if name.startswith("blobs/") else seal(data[2:])
        if data[1] % 3 == 0:
            del changed[name]
            name = data[2:80].decode("utf-8", "replace")
        changed[name] = body
        path = folder / "changed.tar"
        _write_bundle(path, changed)
        with suppress(StoreDamagedError):
            taken = Store(folder / "taken", writable=True)
            import_(path, taken)
            look_at(taken, request_of("one").key, folder)

    bodies = [body if name.startswith("blobs/") else unseal(body) for name, body in members.items()]
    return Fuzzed([bytes([number, 1]) + body for number, body in enumerate(bodies)], try_one)


def wheel(folder: Path, good: Path) -> Fuzzed:
    """The bytes of a wheel."""
    path, catalog = folder / good.name, load_catalog()

    def try_one(data: bytes) -> None:
        path.write_bytes(data)
        with suppress(TkcError):
            audit(path, catalog=catalog)

    return Fuzzed([good.read_bytes(), _small_wheel(good)], try_one)


def wheel_members(folder: Path, good: Path) -> Fuzzed:
    """A wheel whose RECORD is right and one member of which is not: its own manifest, metadata, records, libraries."""
    path, catalog = folder / good.name, load_catalog()
    with zipfile.ZipFile(good) as archive:
        members = {name: archive.read(name) for name in archive.namelist()}
    record = next(name for name in members if name.endswith("/RECORD"))
    names = [name for name in members if name != record and "licenses/" not in name]
    sealed = {name for name in names if "/store/" in name and name.endswith(".json")}

    def try_one(data: bytes) -> None:
        if not data:
            return
        name = names[data[0] % len(names)]
        changed = members | {name: seal(data[1:]) if name in sealed else data[1:]}
        path.write_bytes(zipped(changed, record))
        audit(path, catalog=catalog)

    bodies = [unseal(members[name]) if name in sealed else members[name] for name in names]
    return Fuzzed([bytes([number]) + body for number, body in enumerate(bodies)], try_one)


def library(folder: Path, good: Path) -> Fuzzed:
    """Shared libraries: ELF files in which any number may lie."""
    with zipfile.ZipFile(good) as archive:
        blobs = [archive.read(name) for name in archive.namelist() if "/blobs-v1/" in name]

    def try_one(data: bytes) -> None:
        for target in ("cpu", "sm90"):
            kernels: list[dict[str, Any]] = [{"symbol": "k", "arch": "sm_90a"}]
            list(library_problems(data, host="x86_64", glibc=(2, 28), target=Target.parse(target), kernels=kernels))
        with suppress(ValueError):
            read_cubin(data[:18] + _EM_CUDA + data[20:])

    return Fuzzed(sorted(blobs, key=len)[:2], try_one)


def installed(folder: Path, _wheel: Path) -> Fuzzed:
    """The metadata of a package that happens to be installed: loads must go on whatever is in it."""
    info = folder / "site" / "odd-1.0.dist-info"
    info.mkdir(parents=True)
    (folder / "site" / "odd").mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: odd\nVersion: 1.0\n")

    def try_one(data: bytes) -> None:
        entry_points, _, metadata = data.partition(b"\0")
        (info / "entry_points.txt").write_bytes(entry_points)
        (info / "METADATA").write_bytes(metadata or b"Name: odd\nVersion: 1.0\n")
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            installed_stores([str(folder / "site")])

    return Fuzzed(
        [b"[tkc.stores]\nodd = odd:store\n", b"[tkc.stores]\na=.b:c\n[console_scripts]\nx=y:z\n\0Name: a\nVersion: 2"],
        try_one,
    )


TARGETS: Mapping[str, Callable[[Path, Path], Fuzzed]] = {
    one.__name__: one
    for one in (
        manifest,
        ref,
        records,
        store,
        bundle,
        bundle_members,
        wheel,
        wheel_members,
        library,
        installed,
    )
}


def void(_value: object) -> None:
    """Only whether it raises is of interest."""


def _signature_body() -> bytes:
    return unseal(Signature(request_of("one").key, "ab" * 32, "cd" * 64).to_bytes())


def _bundles(folder: Path) -> tuple[bytes, bytes]:
    one = Store(folder / "bundled", writable=True)
    make(one, "one", library_bytes=b"library")
    for name in ("b.tar", "b.tar.gz"):
        export(one, folder / name)
    return (folder / "b.tar").read_bytes().rstrip(b"\0") + bytes(1024), (folder / "b.tar.gz").read_bytes()


def _write_bundle(path: Path, members: Mapping[str, bytes]) -> None:
    order = sorted(members, key=lambda name: ("blobs", "actions", "signatures", "refs", name).index(_kind(name)))
    plain = [{"name": name, "size_bytes": len(members[name])} for name in order]
    listing = seal(json.dumps({"schema": "tkc.bundle/1", "members": plain}).encode())
    with tarfile.open(path, "w", format=tarfile.USTAR_FORMAT) as archive:
        for name, data in (("bundle.json", listing), *((name, members[name]) for name in order)):
            member = tarfile.TarInfo(name[:99])
            member.size = len(data)
            with suppress(ValueError):  # a name that no tar header takes
                archive.addfile(member, io.BytesIO(data))


def _kind(name: str) -> str:
    kind = name.partition("/")[0]
    return kind if kind in ("blobs", "actions", "signatures", "refs") else name


def _read(archive: tarfile.TarFile, member: tarfile.TarInfo) -> bytes:
    file = archive.extractfile(member)
    assert file
    return file.read()


def _small_wheel(good: Path) -> bytes:
    with zipfile.ZipFile(good) as archive:
        members = {name: archive.read(name) for name in archive.namelist() if "dist-info" in name}
    return zipped(members, next(name for name in members if name.endswith("/RECORD")))
