"""A store with a few artifacts for this CPU, and wheels made of it; built once for the whole folder."""

from __future__ import annotations

import base64
import csv
import hashlib
import io
import zipfile
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path

import pytest

from tests.kernel_specs.cpu_stores import build_cpu_store
from tkc.cache import Hit, Store
from tkc.grids import load_grid
from tkc.model import Host, Manifest, ModelDims, Request, Target
from tkc.registry import find_entry
from tkc.wheel.pack import Packing, pack

SPECS = ("transpose.batched_transpose", "moe.normalize_weight")
DIMS = load_grid("smoke")


@pytest.fixture(scope="session")
def cpu_store(tmp_path_factory: pytest.TempPathFactory) -> Store:
    """The kernels of `SPECS` for grid ``smoke``, compiled for this machine."""
    chosen = [one for name in SPECS for one in find_entry(name).spec.specializations(DIMS)]
    return Store(build_cpu_store(tmp_path_factory.mktemp("wheel") / "store", chosen), writable=True)


def artifacts_of(store: Store, dims: tuple[ModelDims, ...] = DIMS) -> list[tuple[Request, Manifest]]:
    """The request and manifest of each artifact of `SPECS` in `store`."""
    found = []
    for name in SPECS:
        entry = find_entry(name)
        for one in entry.spec.specializations(dims):
            request = Request(one, entry.source_digest(Target.parse("cpu").backend), "cpu", Host.this_machine().arch)
            hit = store.resolve(request.key)
            assert isinstance(hit, Hit)
            found.append((request, hit.manifest))
    return found


def packing_of(store: Store, **changes: object) -> Packing:
    """What `wheel` packs, with some of it changed."""
    plain = Packing(
        target=Target.parse("cpu"),
        host=Host.this_machine(),
        version="1.0",
        grid="smoke",
        specs=SPECS,
        dims=DIMS,
        artifacts=artifacts_of(store),
        provenance={"commit": "0" * 40, "dirty": "no"},
    )
    return replace(plain, **changes)


@pytest.fixture(scope="session")
def wheel(cpu_store: Store, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A good wheel."""
    return pack(packing_of(cpu_store), cpu_store, tmp_path_factory.mktemp("good"))


Change = Callable[[dict[str, bytes]], object]


@pytest.fixture
def changed(wheel: Path, tmp_path: Path) -> Callable[..., Path]:
    """Give a function that writes the good wheel with changed members and a RECORD that agrees with them."""

    def write(change: Change, *, name: str = "", extra: Mapping[zipfile.ZipInfo, bytes] | None = None) -> Path:
        with zipfile.ZipFile(wheel) as archive:
            members = {one: archive.read(one) for one in archive.namelist()}
        change(members)
        path = tmp_path / (name or wheel.name)
        record = next(one for one in members if one.endswith("/RECORD"))
        members[record] = _record({one: data for one, data in members.items() if one != record}, record)
        with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
            for one, data in members.items():
                archive.writestr(one, data)
            for info, data in (extra or {}).items():
                archive.writestr(info, data)
        return path

    return write


def _record(members: Mapping[str, bytes], record: str) -> bytes:
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    for name, data in members.items():
        digest = base64.urlsafe_b64encode(hashlib.sha256(data).digest()).rstrip(b"=").decode()
        writer.writerow((name, f"sha256={digest}", len(data)))
    writer.writerow((record, "", ""))
    return text.getvalue().encode()
