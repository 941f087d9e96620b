"""How long builds take, against TileLang compiling the same programs and against an interpreter that starts."""

from __future__ import annotations

import json
import os
import resource
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

GRID = "deepseek-v3"
SIX = (
    "moe.topk_gate",
    "moe.normalize_weight",
    "quant.per_token_cast",
    "quant.cast",
    "transpose.batched_transpose",
    "transform.apply_rotary",
)
JOBS = os.cpu_count() or 1

# Compiles the programs of the grid with TileLang, in as many processes as tkc uses, its cache off.
_TILELANG = """
import json, sys, time
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context

def compile_one(job):
    import tilelang
    from tkc.model import Backend, Target
    from tkc.registry import find_entry
    name, values = job
    entry = find_entry(name)
    variant = entry.variant(Backend.CUDA)
    program = variant.build(entry.spec.specialization(values), Target.parse("sm90"))
    tilelang.compile(program, target={"kind": "cuda", "arch": "sm_90a"}, execution_backend="tvm_ffi",
                     pass_configs=getattr(variant, "PASS_CONFIGS", None))

if __name__ == "__main__":
    jobs = json.load(sys.stdin)
    started = time.perf_counter()
    with ProcessPoolExecutor(int(sys.argv[1]), mp_context=get_context("spawn")) as pool:
        list(pool.map(compile_one, jobs))
    print(time.perf_counter() - started)
"""


def _tkc(*arguments: str, store: Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "tkc", *arguments],
        env={**os.environ, "TKC_CACHE_DIR": str(store)},
        capture_output=True,
        text=True,
        check=True,
    )


def test_cold_build_against_tilelang(tmp_path: Path, record: Callable[..., None]) -> None:
    started, used = time.perf_counter(), _cpu_s()
    done = _tkc("build", *SIX, "--target", "sm90", "--grid", GRID, "-j", str(JOBS), "--json", store=tmp_path / "store")
    ours_s, ours_cpu_s = time.perf_counter() - started, _cpu_s() - used
    artifacts = json.loads(done.stdout)["artifacts"]
    assert artifacts and all(artifact["status"] == "built" for artifact in artifacts)
    script = tmp_path / "tilelang_compile.py"
    script.write_text(_TILELANG)
    used = _cpu_s()
    theirs = subprocess.run(
        [sys.executable, str(script), str(JOBS)],
        input=json.dumps([[artifact["spec"], artifact["specialization"]] for artifact in artifacts]),
        env={**os.environ, "TILELANG_DISABLE_CACHE": "1"},
        stdout=subprocess.PIPE,
        text=True,
        check=True,
    )
    theirs_s = float(theirs.stdout.split()[-1])
    record(
        f"cold build, {GRID} for sm90, {len(artifacts)} artifacts, {JOBS} jobs",
        ours=ours_s,
        theirs=theirs_s,
        unit="s",
        against="tilelang.compile, cache off",
        bar=1 / 1.5,
        times_faster=theirs_s / ours_s,
        cpu_s=ours_cpu_s,
        their_cpu_s=_cpu_s() - used,
    )


def test_nothing_to_do_against_an_interpreter_that_starts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, record: Callable[..., None]
) -> None:
    store = tmp_path / "store"
    arguments = ("build", *SIX, "--target", "sm90", "--grid", "full", "--json")
    _tkc(*arguments, store=store)
    artifacts = json.loads(_tkc(*arguments, store=store).stdout)["artifacts"]
    assert all(artifact["status"] == "hit" for artifact in artifacts)
    monkeypatch.delenv("PYTHONDONTWRITEBYTECODE", raising=False)  # an installed tkc has its modules compiled
    monkeypatch.setenv("PYTHONPYCACHEPREFIX", str(tmp_path / "pycache"))
    few_arguments = ("build", "moe.normalize_weight", *arguments[1 + len(SIX) :])
    few = json.loads(_tkc(*few_arguments, store=store).stdout)["artifacts"]
    ours_s, few_s = _median(lambda: _tkc(*arguments, store=store)), _median(lambda: _tkc(*few_arguments, store=store))
    theirs_s = _median(lambda: subprocess.run([sys.executable, "-c", "import click"], check=True))
    each_s = (ours_s - few_s) / (len(artifacts) - len(few))  # the rest is paid once, however many there are
    record(
        f"tkc build again, nothing changed, {len(artifacts)} actions",
        ours=ours_s,
        theirs=theirs_s,
        unit="s",
        against="interpreter start + import click",
        each_ms=each_s * 1000,
        more_s=ours_s - theirs_s,
        more_s_for_200_actions=ours_s + (200 - len(artifacts)) * each_s - theirs_s,
    )


def _cpu_s() -> float:
    """CPU time of all processes that ended below this one: unlike the clock, it minds no neighbours."""
    spent = resource.getrusage(resource.RUSAGE_CHILDREN)
    return spent.ru_utime + spent.ru_stime


def _median(run: Callable[[], object], repeats: int = 7) -> float:
    times = []
    for _ in range(repeats):
        started = time.perf_counter()
        run()
        times.append(time.perf_counter() - started)
    return sorted(times)[repeats // 2]
