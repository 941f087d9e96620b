"""Importing tkc costs nothing heavy, and a hit needs no compiler."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.runtime.conftest import Maker
from tkc.model import Specialization


def in_fresh_interpreter(code: str, *, path: Path | None = None) -> str:
    env = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, (str(path or ""), os.environ.get("PYTHONPATH"))))}
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, env=env, timeout=120)
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


def test_import_of_tkc_brings_nothing_heavy() -> None:
    loaded = in_fresh_interpreter("import sys, tkc; print(*sys.modules)").split()
    assert {"torch", "tilelang", "tvm", "tvm_ffi", "numpy", "rich", "click"}.isdisjoint(loaded)


def test_public_names_are_there_and_unknown_ones_are_named() -> None:
    import tkc

    assert set(tkc.__all__) <= set(dir(tkc))
    assert tkc.__version__
    assert all(getattr(tkc, name) for name in tkc.__all__)
    with pytest.raises(AttributeError, match="has no attribute 'kernal'"):
        tkc.kernal  # noqa: B018


def test_launch_that_hits_imports_no_compiler(
    maker: Maker, spec4: Specialization, user_store: Path, site: Path
) -> None:
    maker.put(user_store, spec4)
    code = """
import sys, torch, tkc
x, out = torch.ones(2, 4), torch.empty(2, 4)
tkc.kernel("demo.scale", "cpu", columns=4)(x, out, 2.0)
assert out.unique().item() == 2
print(*sys.modules)
"""
    loaded = in_fresh_interpreter(code, path=site).split()
    assert {"tilelang", "tvm", "tkc.compiler", "tkc.build", "rich", "click"}.isdisjoint(loaded)
