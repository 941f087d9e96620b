"""One process that needs three hundred kernels: ``python cold_start.py tkc|warmup|tilelang``, prints seconds as JSON.

torch is imported and the device awake before the clock starts, the rest is inside: for tkc its import, and for each
artifact finding, verifying, loading and one launch; for TileLang its import, its disk cache, and one launch.
``python cold_start.py build DIR`` builds the artifacts, ``python cold_start.py fill`` TileLang's disk cache.
"""

from __future__ import annotations

import json
import sys
import time
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from pathlib import Path

PACKAGES = Path(__file__).parent / "packages"
COUNT = 300
_N = 1000


def main() -> None:
    """Do what the command line says."""
    sys.path.insert(0, str(PACKAGES))
    what = sys.argv[1]
    if what == "fill":
        with ProcessPoolExecutor(mp_context=get_context("spawn")) as pool:
            list(pool.map(_fill, range(1, COUNT + 1)))
        return
    if what == "build":
        _build(Path(sys.argv[2]), sys.argv[3] if len(sys.argv) > 3 else "sm90")
        return
    import torch

    x = torch.randn(_N, device="cuda")
    outputs = [torch.full((_N,), float("nan"), device="cuda") for _ in range(COUNT)]
    torch.cuda.synchronize()
    started = time.perf_counter()
    {"tkc": _tkc, "warmup": _warmup, "tilelang": _tilelang}[what](x, outputs)
    torch.cuda.synchronize()
    seconds = time.perf_counter() - started
    for factor, y in enumerate(outputs, 1):
        assert torch.equal(y, x * factor), factor
    print(json.dumps({"seconds": seconds, "kernels": COUNT}))


def _tkc(x, outputs) -> None:
    from tkc.registry import load_catalog
    from tkc.runtime import KernelTable

    kernels = KernelTable(load_catalog("bench_kernels").find("elementwise.scale").spec)
    for factor, y in enumerate(outputs, 1):
        kernels[x.device, False, factor](x, y)


def _warmup(x, outputs) -> None:
    """As `_tkc`, after a warm-up, which finds, verifies and loads in several threads."""
    import tkc

    tkc.warmup([("elementwise.scale", {"factor": factor}) for factor in range(1, COUNT + 1)], x.device, progress=False)
    _tkc(x, outputs)


def _tilelang(x, outputs) -> None:
    for factor, y in enumerate(outputs, 1):
        _compile(factor)(x, y)


def _fill(factor: int) -> None:
    sys.path.insert(0, str(PACKAGES))
    _compile(factor)


def _compile(factor: int):
    import tilelang
    from bench_kernels.elementwise.scale.cuda import build
    from bench_kernels.elementwise.scale.spec import SPEC

    program = build(SPEC.bind(factor=factor), None)
    return tilelang.compile(program, target={"kind": "cuda", "arch": "sm_90a"}, execution_backend="tvm_ffi")


def _build(folder: Path, target: str) -> None:
    from tkc.build import build, plan
    from tkc.cache import Store
    from tkc.compiler import Unit
    from tkc.model import Host, Target
    from tkc.registry import load_catalog

    entry = load_catalog("bench_kernels").find("elementwise.scale")
    store = Store(folder.absolute(), writable=True)
    units = [
        Unit(entry, entry.spec.bind(factor=factor), Target.parse(target), Host.this_machine())
        for factor in range(1, COUNT + 1)
    ]
    outcomes = list(build(plan(units, store), store))
    print({status: sum(outcome.status == status for outcome in outcomes) for status in ("hit", "built", "failed")})


if __name__ == "__main__":
    main()
