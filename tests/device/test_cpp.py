"""The C++ example on a real device: ``pytest tests/device/test_cpp.py --store DIR [--cpp-example PROGRAM]``."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

import pytest

from tests.examples.cpp_program import compile_program, library_folder, needed_libraries
from tkc.cache import Hit, Store
from tkc.hardware import cuda_devices
from tkc.model import Host, Request
from tkc.registry import find_entry

pytestmark = pytest.mark.device


@pytest.fixture
def program(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    """The example, compiled elsewhere or here."""
    given = request.config.getoption("--cpp-example")
    if given is not None:
        return Path(given).absolute()
    if shutil.which("g++") is None:
        pytest.fail("there is no g++ here; give --cpp-example PROGRAM, compiled as examples/cpp/README.md says")
    return compile_program(tmp_path)


@pytest.fixture
def library(store: Path, tmp_path: Path) -> Path:
    """The kernel's library for this device, out of the carried store, under a name that tvm-ffi opens."""
    entry, target = find_entry("transpose.batched_transpose"), cuda_devices()[0].target
    source, host = entry.source_digest(target.backend), Host.this_machine().arch
    found = Store(store).resolve(Request(entry.spec.bind(size_bytes=4), source, target.name, host).key)
    assert isinstance(found, Hit), found
    path = tmp_path / "kernel.so"
    path.write_bytes(found.store.read_blob(found.manifest.file("kernel.so").digest))
    return path


def test_a_program_without_python_launches_a_prebuilt_kernel(program: Path, library: Path) -> None:
    env = {"PATH": os.environ["PATH"], "LD_LIBRARY_PATH": f"{library_folder()}:{os.environ.get('LD_LIBRARY_PATH', '')}"}
    done = subprocess.run([program, library, "cuda"], capture_output=True, text=True, check=False, env=env)
    assert done.returncode == 0, done.stderr
    assert "333 x 129 elements transposed, 0 wrong" in done.stdout
    needed = needed_libraries(program, env)
    assert "libtvm_ffi.so" in needed
    assert not [name for name in needed if "python" in name or "torch" in name]


def test_a_wrong_argument_is_an_error_before_anything_is_launched(program: Path, library: Path) -> None:
    """The kernel is for a GPU and is handed memory of the CPU."""
    env = {"PATH": os.environ["PATH"], "LD_LIBRARY_PATH": str(library_folder())}
    done = subprocess.run([program, library, "cpu"], capture_output=True, text=True, check=False, env=env)
    assert done.returncode == 1
    assert "input x device_type mismatch, expected cuda" in done.stderr
