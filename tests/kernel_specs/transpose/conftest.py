"""A store with the family's artifacts for the CPU, built once."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.kernel_specs.cpu_stores import build_cpu_store, every_specialization
from tkc.runtime import reset


@pytest.fixture(scope="session")
def cpu_store(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Every specialization, compiled for this machine's CPU."""
    root = tmp_path_factory.mktemp("transpose") / "store"
    return build_cpu_store(root, every_specialization("transpose.batched_transpose"))


@pytest.fixture
def on_cpu(cpu_store: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """The runtime finds the artifacts of `cpu_store`, and nothing is compiled on a miss."""
    monkeypatch.setenv("TKC_STORES", str(cpu_store))
    monkeypatch.setenv("TKC_ON_MISS", "error")
    reset()
    yield
    reset()
