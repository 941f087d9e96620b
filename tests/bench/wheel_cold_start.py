"""One process that starts, and has launched every kernel: what it waited for, as JSON on standard output.

    python wheel_cold_start.py artifacts --grid deepseek-v3 [--warmup]     # every artifact of the grid, once each
    python wheel_cold_start.py operators kernel_specs                      # the calls of `operator_calls`, ours
    python wheel_cold_start.py operators tile_kernels                      # the same calls, of the peer
    python wheel_cold_start.py tilelang --grid deepseek-v3 [--fill]        # every artifact, by TileLang's disk cache

The time is split into laps. `interpreter`, `import` and `launches` are what a job waits for; importing torch, waking
the device and making inputs are measured and left out, of ours and of theirs. ``--started`` is the reading of
``time.monotonic()`` just before the process was started: the clock is one for all processes of a machine.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import sys
import time
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, field
from multiprocessing import get_context
from pathlib import Path
from typing import Any

COUNTED = ("interpreter", "import", "launches")
"""The laps that a job waits for because of its kernels."""


@dataclass
class Laps:
    """Splits the time since a process was started."""

    last_s: float
    seconds: dict[str, float] = field(default_factory=dict)

    def end(self, name: str) -> None:
        """End the lap `name` now; the next begins."""
        now_s = time.monotonic()
        self.seconds[name] = now_s - self.last_s
        self.last_s = now_s


def main() -> None:
    """Do what the command line says."""
    begun_s = time.monotonic()
    options = _options()
    laps = Laps(options.started or begun_s)
    laps.end("interpreter")
    import torch

    laps.end("torch")
    _wake(options.device)
    laps.end("device")
    result = {"artifacts": _artifacts, "operators": _operators, "tilelang": _tilelang}[options.what](options, laps)
    waited_s = sum(laps.seconds.get(name, 0.0) for name in COUNTED)
    print(json.dumps({"seconds": waited_s, "laps": laps.seconds, "torch": torch.__version__, **result}), flush=True)


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser()
    parser.add_argument("--started", type=float, default=0.0)
    parser.add_argument("--device", default="cuda")
    what = parser.add_subparsers(dest="what", required=True)
    for name in ("artifacts", "tilelang"):
        one = what.add_parser(name)
        one.add_argument("--grid", default="deepseek-v3")
        one.add_argument("--specs", nargs="*", default=())
        one.add_argument("--warmup" if name == "artifacts" else "--fill", action="store_true")
    one = what.add_parser("operators")
    one.add_argument("library")
    one.add_argument("--budget", type=float, default=150.0, help="seconds after which no further call is begun")
    return parser.parse_args()


def _wake(device: str) -> None:
    """Create the device's context."""
    import torch

    torch.empty(1, device=device)
    _synchronize(device)


def _synchronize(device: str) -> None:
    import torch

    if device != "cpu":
        torch.cuda.synchronize()


# Ours


def _artifacts(options: argparse.Namespace, laps: Laps) -> dict[str, Any]:
    """Find, verify, load and launch every artifact of a grid, then compare what they wrote with their references."""
    import tkc
    from tkc.grids import load_grid
    from tkc.registry import load_catalog
    from tkc.runtime import KernelTable

    chosen = _chosen(load_catalog(), load_grid(options.grid), options.specs)
    tables = {entry.spec.name: KernelTable(entry.spec) for entry, _ in chosen}
    laps.end("import")
    device, samples = _device(options.device), [_sample(entry, one) for entry, one in chosen]
    launches = [_moved(entry, one, sample, device) for (entry, one), sample in zip(chosen, samples, strict=True)]
    _synchronize(options.device)
    laps.end("inputs")
    if options.warmup:
        tkc.warmup([one for _, one in chosen], device, progress=False)
    for (entry, one), there in zip(chosen, launches, strict=True):
        values = dict(one)
        tables[entry.spec.name][device, False, *(values[axis.name] for axis in entry.spec.const)](*there.values())
    _synchronize(options.device)
    laps.end("launches")
    loaded = tkc.warmup([one for _, one in chosen], device, progress=False).loaded  # nothing is loaded twice
    return {
        "kernels": len(launches),
        "wrong": [
            problem
            for (entry, one), sample, there in zip(chosen, samples, launches, strict=True)
            for problem in _wrong(entry, one, sample, there)
        ],
        "layers": sorted({str(kernel.layer) for kernel in loaded}),
        "heavy": sorted({"tilelang", "tvm", "tkc.build", "tkc.compiler"} & set(sys.modules)),
    }


def _chosen(catalog: Any, dims: Any, specs: list[str]) -> list[tuple[Any, Any]]:
    return [
        (entry, one)
        for entry in catalog
        if not specs or entry.spec.name in specs
        for one in entry.spec.specializations(dims)
    ]


def _device(name: str) -> Any:
    """With an index: kernels of a device without one are looked up anew at every call."""
    import torch

    return torch.device(name, torch.cuda.current_device()) if name == "cuda" else torch.device(name)


def _sample(entry: Any, specialization: Any) -> dict[str, Any]:
    """The first sample of the reference that gives the kernel something to write, so that the launch is a real one."""
    from tkc.model import Role, TensorArg

    arguments = entry.spec.arguments(specialization)
    written = [one.name for one in arguments if isinstance(one, TensorArg) and one.role is not Role.IN]
    for sample in entry.reference().samples(specialization, 0):
        if any(sample[name] is not None and sample[name].numel() for name in written):
            return dict(sample)
    raise AssertionError(f"{specialization}: no sample of the reference makes it write anything")


def _moved(entry: Any, specialization: Any, sample: dict[str, Any], device: Any) -> dict[str, Any]:
    """The launch arguments, in order, copied to the device with the strides that they have."""
    import torch

    def there(value: Any) -> Any:
        if not isinstance(value, torch.Tensor):
            return value
        return torch.empty_strided(value.shape, value.stride(), dtype=value.dtype, device=device).copy_(value)

    return {argument.name: there(sample[argument.name]) for argument in entry.spec.arguments(specialization)}


def _wrong(entry: Any, specialization: Any, sample: dict[str, Any], got: dict[str, Any]) -> Iterator[str]:
    from tkc.compare import compare_outputs

    want = entry.reference().expected(specialization, sample)
    for result in compare_outputs(entry.spec, specialization, "cold start", 0, got, want):
        if not result.ok:
            yield f"{specialization}: {result.output}: {result.detail}"


# The same calls, of ours and of the peer


def _operators(options: argparse.Namespace, laps: Laps) -> dict[str, Any]:
    """Call every operator of `operator_calls`; one that fails, or is not begun within the budget, is named."""
    import importlib

    library = importlib.import_module(options.library)
    laps.end("import")
    sys.path.insert(0, str(Path(__file__).parent))
    from operator_calls import calls, digest

    device = _device(options.device)
    prepared = calls(device, scoring_func="sqrtsoftplus" if options.library == "tile_kernels" else "sigmoid")
    _synchronize(options.device)
    laps.end("inputs")
    done: dict[str, Any] = {}
    failed: dict[str, str] = {}
    begun_s = time.monotonic()
    for name, call in prepared.items():
        if time.monotonic() - begun_s > options.budget:
            failed[name] = "not called: the budget was spent"
            continue
        try:
            done[name] = call(library)
        except Exception as error:
            failed[name] = f"{type(error).__name__}: {error}"[:160]
        print(f"{time.monotonic() - begun_s:8.2f} s  {name} {failed.get(name, '')}", file=sys.stderr, flush=True)
    _synchronize(options.device)
    laps.end("launches")
    return {"kernels": len(done), "failed": failed, "digests": {name: digest(out) for name, out in done.items()}}


# TileLang's own disk cache


def _tilelang(options: argparse.Namespace, laps: Laps) -> dict[str, Any]:
    """Compile every artifact of the grid with `tilelang.compile`, which finds it in its disk cache, and launch it.

    The programs, their sources and their launch arguments are ours; TileLang is asked as a user of it would.
    """
    import tilelang  # noqa: F401

    from tkc.grids import load_grid
    from tkc.registry import load_catalog

    chosen = _chosen(load_catalog(), load_grid(options.grid), options.specs)
    laps.end("import")
    failed: list[str] = []
    if options.fill:
        with ProcessPoolExecutor(mp_context=get_context("spawn")) as pool:
            failed += filter(None, pool.map(_fill, [one for _, one in chosen]))
        laps.end("launches")
        return {"kernels": len(chosen) - len(failed), "failed": failed}
    device = _device(options.device)
    launches = [_moved(entry, one, _sample(entry, one), device) for entry, one in chosen]
    _synchronize(options.device)
    laps.end("inputs")
    for (entry, one), there in zip(chosen, launches, strict=True):
        try:
            _compile(entry, one)(*there.values())
        except Exception as error:
            failed.append(f"{one}: {type(error).__name__}: {error}"[:160])
    _synchronize(options.device)
    laps.end("launches")
    return {"kernels": len(chosen) - len(failed), "failed": failed}


def _fill(specialization: Any) -> str:
    from tkc.registry import find_entry

    try:
        _compile(find_entry(specialization.spec), specialization)
    except Exception as error:
        return f"{specialization}: {type(error).__name__}: {error}"[:160]
    return ""


def _compile(entry: Any, specialization: Any) -> Any:
    import tilelang

    from tkc.model import Backend, Target

    variant = entry.variant(Backend.CUDA)
    with contextlib.redirect_stdout(sys.stderr):
        return tilelang.compile(
            variant.build(specialization, Target.parse("sm90")),
            target={"kind": "cuda", "arch": "sm_90a"},
            execution_backend="tvm_ffi",
            pass_configs=getattr(variant, "PASS_CONFIGS", None),
        )


if __name__ == "__main__":
    main()
