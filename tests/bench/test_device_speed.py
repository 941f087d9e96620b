"""Speed on a CUDA device: kernels against the peer, launches and cold starts against TileLang.

``pytest tests/bench --run-benchmark --store DIR [--store300 DIR] [--peer]``; the stores were built elsewhere.
"""

from __future__ import annotations

import importlib
import json
import os
import statistics
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.bench import timing

pytestmark = pytest.mark.device
torch = pytest.importorskip("torch")

FAMILIES = ("moe", "quant", "transform", "transpose")
_BARS = {"quant.per_token_cast to e2m1": 0.35}


@pytest.fixture(autouse=True)
def carried_store(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Operators come from the store that was carried here; nothing compiles."""
    from tkc import runtime

    path = request.config.getoption("--store")
    if path is None:
        pytest.fail("give --store DIR, the folder that `tkc build --output DIR` wrote")
    monkeypatch.setenv("TKC_STORES", str(Path(path).absolute()))
    monkeypatch.setenv("TKC_ON_MISS", "error")
    runtime.reset()


# Host times come first: once the profiler has run in a process, every launch and allocation costs more.


def test_host_time_of_a_small_call(peer: bool, record: Callable[..., None]) -> None:
    from kernel_specs.moe import topk_gate

    scores = torch.randn(128, 256, device="cuda")
    want = scores.sort(dim=-1, descending=True, stable=True).indices[:, :8]
    assert torch.equal(topk_gate(scores, 8), want)
    theirs_us = None
    if peer:
        import tile_kernels

        assert torch.equal(tile_kernels.moe.topk_gate(scores, 8), want)
        theirs_us = timing.host_time_us(lambda: tile_kernels.moe.topk_gate(scores, 8))
    record(
        "moe.topk_gate, 128 tokens, host time",
        ours=timing.host_time_us(lambda: topk_gate(scores, 8)),
        theirs=theirs_us,
        unit="us",
        against="TileKernels",
        bar=0.5,
        empty_us=timing.host_time_us(lambda: scores.new_empty((128, 8), dtype=torch.int64)),
    )


def test_one_launch_of_a_loaded_kernel(record: Callable[..., None]) -> None:
    import tilelang

    import tkc
    from tkc.model import Backend, Target
    from tkc.registry import find_entry

    entry = find_entry("moe.topk_gate")
    specialization = entry.spec.bind(num_experts=256, num_topk=8)
    variant = entry.variant(Backend.CUDA)
    theirs = tilelang.compile(
        variant.build(specialization, Target.parse("sm90")),
        target={"kind": "cuda", "arch": "sm_90a"},
        execution_backend="tvm_ffi",
        pass_configs=variant.PASS_CONFIGS,
    )
    ours = tkc.kernel("moe.topk_gate", device="cuda:0", num_experts=256, num_topk=8)
    scores = torch.randn(128, 256, device="cuda")
    outputs = [torch.empty(128, 8, dtype=torch.int64, device="cuda") for _ in range(2)]
    ours(scores, outputs[0])
    theirs(scores, outputs[1])
    assert torch.equal(*outputs)
    record(
        "one launch of a loaded kernel, host time",
        ours=timing.host_time_us(lambda: ours(scores, outputs[0])),
        theirs=timing.host_time_us(lambda: theirs(scores, outputs[1])),
        unit="us",
        against="TileLang's kernel object",
        bar=0.7,
    )


@pytest.mark.parametrize("family", FAMILIES)
def test_host_time(family: str, peer: bool, record: Callable[..., None]) -> None:
    cases = importlib.import_module(f"tests.device.cases.{family}")
    for name, ours, theirs, _ in cases.benchmarks(torch.device("cuda", 0), num_tokens=128):
        record(
            f"{name}, 128 tokens, host time",
            ours=timing.host_time_us(ours),
            theirs=timing.host_time_us(theirs) if theirs and peer else None,
            unit="us",
            against="TileKernels",
            bar=0.5,
        )


def test_three_hundred_artifacts_from_cold(request: pytest.FixtureRequest, record: Callable[..., None]) -> None:
    store = request.config.getoption("--store300")
    if store is None:
        pytest.fail("give --store300 DIR, which `python tests/bench/cold_start.py build DIR` wrote")
    environment = {**os.environ, "TKC_STORES": str(Path(store).absolute()), "TKC_ON_MISS": "error"}
    script = Path(__file__).with_name("cold_start.py")
    subprocess.run([sys.executable, str(script), "fill"], env=environment, check=True, stdout=subprocess.DEVNULL)
    theirs_s = [_cold_start("tilelang", environment) for _ in range(3)]
    ours_s = [_cold_start("tkc", environment) for _ in range(7)]
    record(
        "300 artifacts found, verified, loaded, launched once",
        ours=statistics.median(ours_s) * 1000,
        theirs=statistics.median(theirs_s) * 1000,
        unit="ms",
        against="TileLang, warm disk cache, its import included",
        bar=1 / 20,
        times_faster=statistics.median(theirs_s) / statistics.median(ours_s),
        after_a_warmup_ms=statistics.median([_cold_start("warmup", environment) for _ in range(5)]) * 1000,
        ours_min_ms=min(ours_s) * 1000,
        ours_max_ms=max(ours_s) * 1000,
    )


@pytest.mark.parametrize("family", FAMILIES)
def test_kernel_time(family: str, peer: bool, record: Callable[..., None]) -> None:
    cases = importlib.import_module(f"tests.device.cases.{family}")
    device = torch.device("cuda", 0)
    cases.correctness(device)
    ceiling = timing.copy_bandwidth_gb_s()
    for name, ours, theirs, size_bytes in cases.benchmarks(device):
        theirs = theirs if peer else None
        ours_us = timing.kernel_time_us(ours)
        record(
            name,
            ours=ours_us,
            theirs=timing.kernel_time_us(theirs) if theirs else None,
            unit="us",
            against="TileKernels",
            bar=next((bar for part, bar in _BARS.items() if part in name), 1.0),
            gb_s=size_bytes / ours_us / 1000,
            of_copy=size_bytes / ours_us / 1000 / ceiling,
        )


def _cold_start(which: str, environment: dict[str, str]) -> float:
    script = Path(__file__).with_name("cold_start.py")
    done = subprocess.run(
        [sys.executable, str(script), which], env=environment, stdout=subprocess.PIPE, text=True, check=True
    )
    return float(json.loads(done.stdout.splitlines()[-1])["seconds"])
