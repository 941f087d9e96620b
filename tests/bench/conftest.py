"""Benchmarks: each measures ours and something else in the same run, and records the ratio.

``pytest tests/bench --run-benchmark [--peer]`` writes JSON lines to ``bench-results/`` and prints a table.
A benchmark asserts correctness before it measures, never speed: the bar is printed beside the figure.
"""

from __future__ import annotations

import json
import platform
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import pytest

_RESULTS = pytest.StashKey[list["Result"]]()


@dataclass(frozen=True)
class Result:
    """One measured comparison; the ratio is ours over theirs, so smaller is better."""

    name: str
    ours: float
    theirs: float | None
    unit: str
    against: str
    bar: float | None = None
    extras: dict[str, Any] = field(default_factory=dict)

    @property
    def ratio(self) -> float | None:
        return self.ours / self.theirs if self.theirs else None


def pytest_configure(config: pytest.Config) -> None:
    config.stash[_RESULTS] = []


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if Path(__file__).parent in item.path.parents:
            item.add_marker(pytest.mark.benchmark)


@pytest.fixture
def record(request: pytest.FixtureRequest) -> Callable[..., None]:
    """Record one comparison: ``record(name, ours=, theirs=, unit=, against=, bar=, **extras)``."""

    def add(
        name: str,
        *,
        ours: float,
        theirs: float | None,
        unit: str,
        against: str,
        bar: float | None = None,
        **extras: Any,
    ) -> None:
        request.config.stash[_RESULTS].append(Result(name, ours, theirs, unit, against, bar, extras))

    return add


@pytest.fixture
def peer(request: pytest.FixtureRequest) -> bool:
    """Whether to measure the peer beside ours."""
    return bool(request.config.getoption("--peer"))


def pytest_terminal_summary(terminalreporter: Any, config: pytest.Config) -> None:
    results = config.stash.get(_RESULTS, [])
    if not results:
        return
    _write(results, Path(config.rootpath) / "bench-results")
    write = terminalreporter.write_line
    write(f"{'benchmark':58}{'ours':>11}{'theirs':>11} {'unit':6}{'ratio':>7}{'bar':>7}  against")
    for result in results:
        theirs = f"{result.theirs:11.2f}" if result.theirs is not None else f"{'-':>11}"
        ratio = f"{result.ratio:7.2f}" if result.ratio is not None else f"{'-':>7}"
        bar = f"{result.bar:7.2f}" if result.bar is not None else f"{'-':>7}"
        write(f"{result.name:58}{result.ours:11.2f}{theirs} {result.unit:6}{ratio}{bar}  {result.against}")
        if result.extras:
            write("    " + "  ".join(f"{key}={_short(value)}" for key, value in result.extras.items()))


def _short(value: Any) -> str:
    return f"{value:.4g}" if isinstance(value, float) else str(value)


def _write(results: list[Result], folder: Path) -> None:
    folder.mkdir(exist_ok=True)
    where = {"date": time.strftime("%Y-%m-%d"), "device": _device_name(), "python": platform.python_version()}
    with (folder / f"{time.strftime('%Y%m%d-%H%M%S')}.jsonl").open("w") as file:
        for result in results:
            file.write(json.dumps({**asdict(result), "ratio": result.ratio, **where}) + "\n")


def _device_name() -> str:
    from tkc.hardware import cuda_devices

    devices = cuda_devices()
    return devices[0].name if devices else f"{platform.machine()} CPU"
