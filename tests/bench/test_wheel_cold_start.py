"""From the start of a process to every kernel launched: an installed wheel, beside the peer and TileLang's disk cache.

``pytest tests/bench/test_wheel_cold_start.py --run-benchmark --wheel FILE [--peer]``. The wheel's target says on which
device. With ``--peer``, TileKernels, TileLang and nvcc must be here; the peer compiles for one to three minutes.
"""

from __future__ import annotations

import statistics
import subprocess
import warnings
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest

from tests.bench.fresh_process import InstalledWheel, install, start

RUNS = 7


@pytest.fixture(scope="module")
def installed(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> InstalledWheel:
    """The wheel of ``--wheel``, in an empty folder."""
    wheel = request.config.getoption("--wheel")
    if wheel is None:
        pytest.fail("give --wheel FILE, which `tkc wheel` wrote")
    return install(Path(wheel), tmp_path_factory.mktemp("wheel") / "site")


@pytest.fixture(scope="module")
def theirs(
    request: pytest.FixtureRequest, installed: InstalledWheel, tmp_path_factory: pytest.TempPathFactory
) -> Mapping[str, Any]:
    """The peer's calls, with an empty cache folder and again with what that run left in it; empty without ``--peer``.

    A run of theirs that fails is a warning, and costs no figure of ours.
    """
    if not request.config.getoption("--peer"):
        return {}
    folder, runs = tmp_path_factory.mktemp("peer"), {}
    cache = {"TILELANG_CACHE_DIR": str(folder / "cache")}
    run = ("--device", installed.device, "operators", "tile_kernels")
    for which in ("cold", "warm", "warm again"):
        try:
            runs[which] = start(*run, home=folder / "home", timeout_s=400, **cache)
        except (AssertionError, subprocess.TimeoutExpired) as error:
            warnings.warn(f"TileKernels, {which}: {error}", stacklevel=1)
    return runs


def _ours(installed: InstalledWheel, home: Path, *arguments: object) -> list[Any]:
    """Several fresh processes, under the policy `error`, with no store but the wheel's."""
    run = ("--device", installed.device, *arguments)
    return [start(*run, home=home, path=installed.folder, TKC_ON_MISS="error") for _ in range(RUNS)]


def _against(theirs: Mapping[str, Any]) -> list[tuple[str, float | None, float, dict[str, Any]]]:
    """Whom a figure of ours stands beside: title, their ms, the bar, and what else is to be known of their run."""
    warm = [theirs[which] for which in ("warm", "warm again") if which in theirs]
    beside = (
        ("cold", theirs.get("cold"), 1 / 100),
        ("warm", min(warm, key=lambda run: run["seconds"], default=None), 1 / 15),
    )
    return [
        (f"TileKernels, {which}, {run['kernels']} calls", run["seconds"] * 1000, bar, _their_extras(run))
        if run
        else (f"TileKernels, {which}, not measured", None, bar, {})
        for which, run, bar in beside
    ]


def _their_extras(run: Mapping[str, Any]) -> dict[str, Any]:
    return {"their_import_ms": run["laps"]["import"] * 1000, "their_failures": run["failed"]}


def _our_extras(runs: list[Any], ours_ms: float, theirs_ms: float | None) -> dict[str, Any]:
    laps = {f"{name}_ms": statistics.median(run["laps"][name] for run in runs) * 1000 for name in runs[0]["laps"]}
    spread = {"first_ms": runs[0]["seconds"] * 1000, "max_ms": max(run["seconds"] for run in runs) * 1000}
    return {"kernels": runs[0]["kernels"], "times_faster": theirs_ms and theirs_ms / ours_ms, **spread, **laps}


@pytest.mark.parametrize("warmup", [False, True], ids=["on first use", "by tkc.warmup"])
def test_every_artifact_of_the_wheel_launched(
    warmup: bool,
    installed: InstalledWheel,
    theirs: Mapping[str, Any],
    tmp_path: Path,
    record: Callable[..., None],
) -> None:
    how = ("--warmup",) if warmup else ()
    runs = _ours(installed, tmp_path / "home", "artifacts", "--grid", installed.grid, *how)
    for run in runs:
        assert run["wrong"] == []
        assert run["layers"] == [str(installed.store)]
        assert run["heavy"] == []
    assert {path.name for path in (tmp_path / "home").iterdir()} <= {".nv"}, "a user store was made"
    ours_ms = statistics.median(run["seconds"] for run in runs) * 1000
    for against, theirs_ms, bar, extras in _against(theirs):
        record(
            f"{installed.target} wheel, {installed.grid}, {'tkc.warmup' if warmup else 'first use'}, all launched",
            ours=ours_ms,
            theirs=theirs_ms,
            unit="ms",
            against=against,
            bar=bar,
            **_our_extras(runs, ours_ms, theirs_ms),
            **extras,
        )


def test_the_calls_that_the_peer_has_too(
    installed: InstalledWheel, theirs: Mapping[str, Any], tmp_path: Path, record: Callable[..., None]
) -> None:
    runs = _ours(installed, tmp_path / "home", "operators", "kernel_specs")
    for run in runs:
        assert run["failed"] == {}
        assert run["digests"] == runs[0]["digests"]
    ours_ms = statistics.median(run["seconds"] for run in runs) * 1000
    for against, theirs_ms, bar, extras in _against(theirs):
        record(
            f"{installed.target} wheel, the same calls, all launched",
            ours=ours_ms,
            theirs=theirs_ms,
            unit="ms",
            against=against,
            bar=bar,
            **_our_extras(runs, ours_ms, theirs_ms),
            **extras,
            **(_equal_outputs(runs[0], theirs["cold"]) if "cold" in theirs else {}),
        )


def _equal_outputs(ours: Mapping[str, Any], theirs: Mapping[str, Any]) -> dict[str, Any]:
    other = [name for name, digest in theirs["digests"].items() if ours["digests"][name] != digest]
    return {"equal_outputs": len(theirs["digests"]) - len(other), "other_outputs": other}


def test_the_same_artifacts_through_the_disk_cache_of_tilelang(
    peer: bool, installed: InstalledWheel, tmp_path: Path, record: Callable[..., None]
) -> None:
    if not peer:
        pytest.skip("only with --peer")
    cache = {"TILELANG_CACHE_DIR": str(tmp_path / "cache")}
    run = ("--device", installed.device, "tilelang", "--grid", installed.grid)
    filled = start(*run, "--fill", home=tmp_path / "home", timeout_s=400, **cache)
    warm = min((start(*run, home=tmp_path / "home", **cache) for _ in range(2)), key=lambda run: run["seconds"])
    ours = _ours(installed, tmp_path / "home", "artifacts", "--grid", installed.grid)
    assert all(run["wrong"] == [] for run in ours)
    ours_ms, theirs_ms = statistics.median(run["seconds"] for run in ours) * 1000, warm["seconds"] * 1000
    record(
        f"{installed.target} wheel, {installed.grid}, first use, all launched",
        ours=ours_ms,
        theirs=theirs_ms,
        unit="ms",
        against=f"TileLang's disk cache, {warm['kernels']} of the same artifacts",
        bar=1 / 15,
        **_our_extras(ours, ours_ms, theirs_ms),
        their_import_ms=warm["laps"]["import"] * 1000,
        their_failures=[*filled["failed"], *warm["failed"]],
    )
