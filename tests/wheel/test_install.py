"""Wheels installed with pip into environments that have no compiler, and used there."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.bench.fresh_process import SCRIPT
from tests.wheel.conftest import SPECS
from tests.wheel.environments import ROOT, Environment, interpreter

pytestmark = pytest.mark.level1

_ON_TORCH = """
import json, sys
import torch
import tkc
from kernel_specs.moe import normalize_weight
from kernel_specs.transpose import transpose

tkc.seal()
weights = torch.rand(5, 8)
_, normal = normalize_weight(weights)
x = torch.rand(33, 65)
right = torch.allclose(normal, weights / weights.sum(1, keepdim=True)) and torch.equal(transpose(x), x.T)
kernel = tkc.kernel("moe.normalize_weight", device="cpu", num_topk=8)
heavy = sorted({"tilelang", "tvm", "tkc.build", "tkc.compiler"} & set(sys.modules))
print(json.dumps({"right": right, "layer": str(kernel.layer), "heavy": heavy}))
"""

_ON_NUMPY = """
import json, sys
import numpy as np
import tkc

kernel = tkc.kernel("transpose.batched_transpose", device="cpu", size_bytes=4)
x = np.arange(60, dtype=np.float32).reshape(3, 4, 5)
out = np.full((3, 5, 4), np.nan, np.float32)
kernel(x, out)
heavy = sorted({"torch", "tilelang", "tvm"} & set(sys.modules))
print(json.dumps({"right": bool((out == x.transpose(0, 2, 1)).all()), "layer": str(kernel.layer), "heavy": heavy}))
"""


@pytest.fixture(scope="session")
def distribution(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """tkc itself, as a wheel."""
    folder = tmp_path_factory.mktemp("distribution")
    command = [sys.executable, "-m", "pip", "wheel", "--quiet", "--disable-pip-version-check", "--no-deps"]
    subprocess.run([*command, "--wheel-dir", str(folder), str(ROOT)], check=True)
    (path,) = folder.glob("tilelang_tkc-*.whl")
    return path


@pytest.fixture(scope="session")
def with_torch(distribution: Path, wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Environment:
    """Python 3.11 with torch, tkc and the CPU wheel."""
    import torch

    environment = Environment.make(tmp_path_factory.mktemp("torch") / "venv", "3.11")
    environment.install(f"torch=={torch.__version__.partition('+')[0]}", distribution, wheel)
    return environment


@pytest.fixture(scope="session")
def without_torch(
    distribution: Path, wheel: Path, tmp_path_factory: pytest.TempPathFactory
) -> Callable[[str], Environment]:
    """Give a function that makes, once, an environment of a Python version with NumPy, tkc and the CPU wheel."""
    made: dict[str, Environment] = {}

    def make(version: str) -> Environment:
        if interpreter(version) is None:
            pytest.skip(f"this machine has no Python {version}")
        if version not in made:
            made[version] = Environment.make(tmp_path_factory.mktemp("numpy") / "venv", version)
            made[version].install("numpy", f"{distribution}[wheel]", wheel)
        return made[version]

    return make


def test_the_cpu_wheel_serves_a_job_that_has_torch_and_no_compiler(with_torch: Environment) -> None:
    """pip install is all: no HOME, no TKC_* but the policy; read in place, nothing copied or written."""
    assert with_torch.run("-c", "import tilelang").returncode != 0
    before = sorted(with_torch.folder.rglob("*.json"))
    found = json.loads(with_torch.output("-c", _ON_TORCH))
    store = with_torch.site_packages / "tkc_kernels_cpu" / "store"
    assert found == {"right": True, "layer": str(store), "heavy": []}
    assert sorted(with_torch.folder.rglob("*.json")) == before


def test_a_fresh_process_launches_every_artifact_of_the_wheel(with_torch: Environment) -> None:
    """What tests/device does with the wheel of a GPU: each launched, compared with its reference, nothing compiled."""
    run = ("--device", "cpu", "artifacts", "--grid", "smoke", "--specs", *SPECS)
    for how in ((), ("--warmup",)):
        told = json.loads(with_torch.output(SCRIPT, *run, *how))
        assert (told["wrong"], told["heavy"], told["kernels"] > 2) == ([], [], True)
        assert told["layers"] == [str(with_torch.site_packages / "tkc_kernels_cpu" / "store")]


def test_a_miss_under_error_names_the_line_that_builds_it(with_torch: Environment) -> None:
    done = with_torch.run("-c", "import tkc; tkc.kernel('moe.topk_gate', num_experts=256, num_topk=8, device='cpu')")
    assert done.returncode != 0
    assert "tkc build moe.topk_gate num_experts=256 num_topk=8 --target cpu" in done.stderr
    assert f"{with_torch.site_packages / 'tkc_kernels_cpu' / 'store'}: " in done.stderr


def test_doctor_and_explain_name_the_wheel_that_serves(with_torch: Environment) -> None:
    assert "wheel tkc-kernels-cpu 1.0" in with_torch.run("-m", "tkc", "doctor").stdout
    told = with_torch.output("-m", "tkc", "explain", "moe.normalize_weight", "num_topk=8", "--target", "cpu")
    assert f"hit in wheel tkc-kernels-cpu 1.0 ({with_torch.site_packages / 'tkc_kernels_cpu' / 'store'})" in told


def test_a_kernel_edited_after_the_wheel_was_built_is_a_miss_with_that_reason(with_torch: Environment) -> None:
    source = with_torch.site_packages / "kernel_specs" / "moe" / "normalize_weight" / "cpu.py"
    text = source.read_text()
    try:
        source.write_text(text + "\n# edited\n")
        done = with_torch.run("-c", _ON_TORCH)
    finally:
        source.write_text(text)
    assert done.returncode != 0
    assert "source changed: it holds this kernel, built from other source files" in done.stderr


@pytest.mark.parametrize("version", ["3.11", "3.12", "3.13"])
def test_the_cpu_wheel_runs_on_numpy_arrays_without_torch(
    version: str, without_torch: Callable[[str], Environment]
) -> None:
    environment = without_torch(version)
    found = json.loads(environment.output("-c", _ON_NUMPY))
    assert found == {"right": True, "layer": str(environment.site_packages / "tkc_kernels_cpu/store"), "heavy": []}


@pytest.mark.parametrize("version", ["3.12", "3.13"])
def test_a_wheel_is_audited_wherever_it_is_installed(
    version: str, without_torch: Callable[[str], Environment], wheel: Path
) -> None:
    environment = without_torch(version)
    told = json.loads(environment.output("-m", "tkc", "wheel", "--check", wheel, "--json"))
    assert (told["ok"], told["problems"]) == (True, [])
    assert "wheel tkc-kernels-cpu 1.0" in environment.run("-m", "tkc", "doctor").stdout
