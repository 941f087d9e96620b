"""A catalogue with one kernel, hand-made artifacts of it, and stores that hold them."""

from __future__ import annotations

import importlib
import itertools
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest

from tkc import registry
from tkc.cache import Store
from tkc.model import Action, Digest, Host, Request, Specialization, Stage, Target
from tkc.registry import CatalogEntry
from tkc.runtime import reset
from tkc.runtime.device import DeviceInfo

CPU = DeviceInfo(Target.parse("cpu"), "cpu", 0)
H200 = DeviceInfo(Target.parse("sm90"), "cuda", 0, "NVIDIA H200", (9, 0))

_SPEC = """
from tkc.model import ConstAxis, DType, KernelSpec, ModelDims, Role, ScalarArg, TensorArg, VarAxis

def specialize(*, columns):
    return {"width": 4 if columns <= 4 else 8}

def arguments(specialization):
    shape = ("num_rows", specialization.int("width"))
    return (
        TensorArg("x", shape, DType.FLOAT32),
        TensorArg("out", shape, DType.FLOAT32, role=Role.OUT),
        ScalarArg("factor", DType.FLOAT32),
    )

SPEC = KernelSpec(
    name="demo.scale",
    summary="Multiply a matrix by a number.",
    definition="out = x * factor",
    const=(ConstAxis("width", (4, 8), "a test needs one"),),
    var=(VarAxis("num_rows", "rows"),),
    specialize=specialize,
    arguments=arguments,
    grid=lambda dims: [{"columns": 3}, {"columns": 7}],
)
"""
_REFERENCE = """
def expected(specialization, args):
    return {"out": args["x"] * args["factor"]}
"""
_SERIAL = itertools.count()


@pytest.fixture(autouse=True)
def fresh_runtime() -> Iterator[None]:
    """No test sees what another loaded."""
    reset()
    yield
    reset()


@pytest.fixture
def site(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A folder of installed packages, first on the path."""
    folder = tmp_path / "site"
    folder.mkdir()
    monkeypatch.syspath_prepend(folder)
    yield folder
    _forget_catalogs()


@pytest.fixture
def entry(site: Path) -> CatalogEntry:
    """The kernel ``demo.scale`` of an installed catalogue, with a variant for the CPU and for CUDA."""
    package = f"demo_catalog_{next(_SERIAL)}"
    kernel = site / package / "demo" / "scale"
    kernel.mkdir(parents=True)
    for folder in (kernel, kernel.parent, kernel.parent.parent):
        (folder / "__init__.py").touch()
    (kernel / "spec.py").write_text(_SPEC)
    (kernel / "reference.py").write_text(_REFERENCE)
    (kernel / "cpu.py").write_text("# hand-made\n")
    (kernel / "cuda.py").write_text("# hand-made\n")
    announce(site, package, "tkc.catalogs", package)
    _forget_catalogs()
    return registry.find_entry("demo.scale")


@pytest.fixture
def spec4(entry: CatalogEntry) -> Specialization:
    return entry.spec.bind(columns=4)


@pytest.fixture(scope="session")
def compiled(tmp_path_factory: pytest.TempPathFactory) -> Callable[[int, bool], bytes]:
    """Gives the bytes of the demo library for a width, compiled by the build extra's own C compiler."""
    folder = tmp_path_factory.mktemp("demo-libraries")

    def library(width: int, pdl: bool = True) -> bytes:
        path = folder / f"{width}-{pdl}.so"
        if not path.exists():
            _cc(Path(__file__).with_name("demo_kernel.c"), path, f"-DWIDTH={width}", *(["-DWITH_PDL"] if pdl else []))
        return path.read_bytes()

    return library


@dataclass
class Maker:
    """Puts hand-made artifacts into stores."""

    entry: CatalogEntry
    compiled: Callable[..., bytes]
    folder: Path

    def request(self, specialization: Specialization, device: DeviceInfo = CPU) -> Request:
        source = self.entry.source_digest(device.target.backend)
        return Request(specialization, source, device.target.name, Host.this_machine().arch)

    def put(
        self,
        root: Path,
        specialization: Specialization,
        device: DeviceInfo = CPU,
        *,
        pdl: bool = True,
        data: bytes | None = None,
        facts: dict[str, Any] | None = None,
        tail: bytes = b"",
        **request_fields: Any,
    ) -> Store:
        """Commit an artifact to the store at `root` and let the specialization's request find it."""
        store = Store(root, writable=True)
        request = replace(self.request(specialization, device), **request_fields)
        content = self.compiled(specialization.int("width"), pdl) if data is None else data
        library = self.folder / "kernel.so"
        library.write_bytes(content + tail)
        fields = {**request.fields(), "bytes": Digest.of_bytes(content + tail), "host": {"arch": request.host}}
        arch = {"kernels": [{"symbol": "scale", "arch": device.target.arch}]}
        action = Action(Stage.COMPILE, fields)
        manifest = store.commit(action, self.folder, ["kernel.so"], facts={**arch, **(facts or {})})
        store.write_ref(request.key, request.fields(), manifest.key)
        return store


@pytest.fixture
def maker(entry: CatalogEntry, compiled: Callable[..., bytes], tmp_path: Path) -> Maker:
    folder = tmp_path / "produced"
    folder.mkdir()
    return Maker(entry, compiled, folder)


@pytest.fixture
def user_store(tmp_path: Path) -> Path:
    """Where the user store is, as `own_environment` sets it."""
    return tmp_path / "user-store"


def announce(site: Path, name: str, group: str, value: str) -> None:
    """Install the metadata of a distribution with one entry point."""
    info = site / f"{name}-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text(f"[{group}]\n{name} = {value}\n")


def _forget_catalogs() -> None:
    importlib.invalidate_caches()
    registry.find_entry.cache_clear()
    registry.installed_packages.cache_clear()
    registry._entry_in.cache_clear()
    registry.load_catalog.cache_clear()


def _cc(source: Path, output: Path, *options: str) -> None:
    from tvm_ffi.libinfo import include_paths

    includes = [f"-I{path}" for path in include_paths()]
    compiler = [sys.executable, "-m", "ziglang", "cc"]
    subprocess.run(
        [*compiler, "-shared", "-O1", "-fvisibility=hidden", *includes, *options, str(source), "-o", str(output)],
        check=True,
        cwd=output.parent,
    )


__all__ = ["CPU", "H200", "Maker", "announce"]
