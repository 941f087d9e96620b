"""The device suite: artifacts that were built elsewhere, run on a real device with no compiler in reach.

``pytest tests/device --store DIR`` runs it against the store that ``tkc build --output DIR`` wrote.
"""

from __future__ import annotations

import importlib.metadata
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

FAMILIES = ("moe", "quant", "transform", "transpose")


class _NoCompilers:
    """An import hook that lets no compiler in: what runs here was built ahead of time."""

    def find_spec(self, name: str, path: object = None, target: object = None) -> None:
        if name.partition(".")[0] in {"tilelang", "tvm", "ziglang"}:
            raise ModuleNotFoundError(f"{name} is barred from the device suite", name=name)


@pytest.fixture(scope="session")
def store(request: pytest.FixtureRequest) -> Path:
    """The store that was carried here."""
    path = request.config.getoption("--store")
    if path is None:
        pytest.fail("give --store DIR, the folder that `tkc build --output DIR` wrote")
    return Path(path).absolute()


@pytest.fixture(autouse=True)
def sealed(store: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Read-only store, policy `error`, no tilelang, no nvcc, nothing loaded yet."""
    from tkc import runtime

    monkeypatch.setenv("TKC_STORES", str(store))
    monkeypatch.setenv("TKC_ON_MISS", "error")
    monkeypatch.setenv("PATH", "/usr/bin:/bin")
    monkeypatch.setattr(sys, "meta_path", [_NoCompilers(), *sys.meta_path])
    runtime.reset()
    yield
    runtime.reset()
    assert "tilelang" not in sys.modules


def pytest_report_header() -> list[str]:
    import torch

    from tkc.hardware import cuda_devices, driver_version

    versions = {name: importlib.metadata.version(name) for name in ("torch", "apache-tvm-ffi")}
    return [
        *(f"device: {device.name}, compute capability {device.capability}" for device in cuda_devices()),
        f"driver: CUDA {driver_version()}; torch built for CUDA {torch.version.cuda}",
        ", ".join(f"{name} {version}" for name, version in versions.items()),
    ]
