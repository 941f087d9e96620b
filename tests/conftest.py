"""Test levels, devices, and a store of one's own for every test."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

LEVEL = int(os.environ.get("TKC_TEST_LEVEL", "1"))


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--run-benchmark", action="store_true", help="run tests/bench, which measures speed")
    parser.addoption("--store", metavar="DIR", help="tests/device: the store to run artifacts from")
    parser.addoption("--store300", metavar="DIR", help="tests/bench: the store of three hundred small kernels")
    parser.addoption("--wheel", metavar="FILE", help="tests/bench, tests/device: a wheel of kernels to install and run")
    parser.addoption("--cpp-example", metavar="FILE", help="tests/device: examples/cpp as a program; else compile it")
    parser.addoption("--peer", action="store_true", help="measure the peer beside ours, where it is installed")


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    above = [item for item in items if _level(item) > LEVEL]
    benchmarks = [] if config.getoption("--run-benchmark") else [i for i in items if i.get_closest_marker("benchmark")]
    dropped = {id(item) for item in above + benchmarks}
    if dropped:
        config.hook.pytest_deselected(items=[item for item in items if id(item) in dropped])
        items[:] = [item for item in items if id(item) not in dropped]
    for item in items:
        if item.get_closest_marker("device") and not _has_cuda():
            item.add_marker(pytest.mark.skip(reason="no CUDA device here"))


@pytest.fixture(autouse=True)
def own_environment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """No test sees the user's store, layers or policy."""
    for name in [name for name in os.environ if name.startswith("TKC_") and name != "TKC_TEST_LEVEL"]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("TKC_CACHE_DIR", str(tmp_path / "user-store"))


def _level(item: pytest.Item) -> int:
    return next((level for level in (2, 1) if item.get_closest_marker(f"level{level}")), 0)


def _has_cuda() -> bool:
    from tkc.hardware import cuda_devices

    return bool(cuda_devices())
