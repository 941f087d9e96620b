"""Compiling on a miss, for real: a kernel of the catalogue, for the CPU, in processes of its own."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tkc.cache import Store

pytestmark = pytest.mark.level1

_NORMALIZE = """
import sys, torch, kernel_specs
weights = torch.rand(7, 8)
_, normalized = kernel_specs.moe.normalize_weight(weights)
torch.testing.assert_close(normalized, weights / weights.sum(1, keepdim=True))
print("tilelang" in sys.modules)
"""
_SHOWING_STAGES = """
from tkc.runtime import fallback
fallback._Announcement.at = lambda self, stage: print(f"stage {stage}", flush=True)
"""


def start(code: str, **env: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-c", code],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, **env},
    )


def finish(process: subprocess.Popen[str]) -> tuple[str, str]:
    out, err = process.communicate(timeout=120)
    assert process.returncode == 0, err
    return out, err


def test_first_process_compiles_aloud_and_the_next_one_only_loads(user_store: Path) -> None:
    out, err = finish(start(_NORMALIZE))
    assert "tkc: compiling moe.normalize_weight --target cpu for cpu" in err
    assert out.strip() == "False"  # the compiler runs in a worker
    (miss,) = Store(user_store).miss_log.read()
    assert miss.entry["policy"] == "jit"

    out, err = finish(start(_NORMALIZE, TKC_ON_MISS="error"))
    assert err == ""
    assert out.strip() == "False"


def test_processes_that_miss_together_compile_once(user_store: Path) -> None:
    processes = [start(_SHOWING_STAGES + _NORMALIZE) for _ in range(3)]
    outputs = [finish(process)[0] for process in processes]
    assert sum("stage lower" in output for output in outputs) == 1, outputs


def test_warm_up_compiles_what_misses_and_loads_it(user_store: Path) -> None:
    code = """
import tkc
calls = [("moe.normalize_weight", {"num_topk": 8}), ("transpose.batched_transpose", {"size_bytes": 2})]
report = tkc.warmup(calls, "cpu")
print(*[kernel.specialization.spec for kernel in report.loaded])
"""
    out, err = finish(start(code))
    assert out.split() == ["moe.normalize_weight", "transpose.batched_transpose"]
    assert "tkc: compiling 2 artifacts --target cpu" in err
    assert "tkc: compiled 2 artifacts --target cpu" in err
