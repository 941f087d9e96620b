"""A catalogue whose kernels misbehave while they are compiled, each in its own way."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tkc.registry import Catalog, load_catalog

PACKAGE = "misbehaving_kernels"

_SPEC = """
from tkc.model import ConstAxis, DType, KernelSpec, Role, TensorArg, VarAxis

def _specialize(factor: int = 2):
    return {{"factor": factor}}

SPEC = KernelSpec(
    name="demo.{name}", summary="scales a vector", definition="y = x * factor",
    const=(ConstAxis("factor", tuple(range(1, 65)), "a test wants many actions"),),
    var=(VarAxis("n", "elements"),),
    specialize=_specialize,
    arguments=lambda s: (TensorArg("x", ("n",), DType.FLOAT32), TensorArg("y", ("n",), DType.FLOAT32, Role.OUT)),
    grid=lambda dims: [{{"factor": factor}} for factor in (2, 3)],
)
"""

_VARIANT = """
import os, signal, sys, time
import tilelang.language as T

def build(specialization, target):
    factor = specialization.int("factor")
    {misbehaviour}
    n = T.dynamic("n")

    @T.prim_func
    def {name}(x: T.Tensor[(n,), "float32"], y: T.Tensor[(n,), "float32"]):
        with T.Kernel(1):
            for i in T.serial(n):
                y[i] = x[i] * T.float32(factor)

    return {name}
"""

_REFERENCE = """
import torch

def samples(specialization, seed):
    generator = torch.Generator().manual_seed(seed)
    for n in (1, 1000):
        yield {"x": torch.randn(n, generator=generator), "y": torch.full((n,), float("nan"))}

def expected(specialization, args):
    return {"y": args["x"] * specialization["factor"]}
"""

MISBEHAVIOURS = {
    "good": "",
    "chatty": "print('noise ' * 1000); sys.stdout.flush(); os.write(1, b'more noise')",
    "raises": "raise RuntimeError('this kernel cannot be traced')",
    "crashes": "os.kill(os.getpid(), signal.SIGSEGV)",
    "hangs": "time.sleep(3600)",
    "slow": "time.sleep(1.5)",
    "crashes_once": """
    once = os.environ["TKC_TEST_ONCE"]
    if not os.path.exists(once):
        open(once, "x").close()
        os.kill(os.getpid(), signal.SIGKILL)
    """,
}


def write_catalog(root: Path) -> None:
    """Write the package below `root`."""
    for name, misbehaviour in MISBEHAVIOURS.items():
        folder = root / PACKAGE / "demo" / name
        folder.mkdir(parents=True)
        (folder / "__init__.py").write_text("")
        (folder / "spec.py").write_text(_SPEC.format(name=name))
        (folder / "cpu.py").write_text(_VARIANT.format(name=name, misbehaviour=misbehaviour or "pass"))
        (folder / "reference.py").write_text(_REFERENCE)
    (root / PACKAGE / "__init__.py").write_text("")
    (root / PACKAGE / "demo" / "__init__.py").write_text("")


@pytest.fixture
def catalog(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Catalog]:
    """The misbehaving catalogue, importable here and in workers."""
    write_catalog(tmp_path / "packages")
    monkeypatch.syspath_prepend(tmp_path / "packages")
    yield load_catalog(PACKAGE)
    load_catalog.cache_clear()
    for name in [name for name in sys.modules if name.startswith(PACKAGE)]:
        del sys.modules[name]
