"""A store with the family's artifacts for the CPU, built once."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from kernel_specs.moe._routing import EXPERT_BUCKETS
from tkc.build import build, plan
from tkc.cache import Store
from tkc.compiler.stages import Unit
from tkc.model import Host, Specialization, Target
from tkc.registry import find_entry
from tkc.runtime import reset


def specializations() -> tuple[Specialization, ...]:
    """Everything that the family's first two kernels can be built for."""
    topk_gate, normalize_weight = find_entry("moe.topk_gate").spec, find_entry("moe.normalize_weight").spec
    buckets = (topk_gate.specialization({"max_experts": bucket}) for bucket in EXPERT_BUCKETS)
    return (*buckets, normalize_weight.specialization({}))


@pytest.fixture(scope="session")
def cpu_store(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Every specialization, compiled for this machine's CPU."""
    root = tmp_path_factory.mktemp("moe") / "store"
    store = Store(root, writable=True)
    target, host = Target.parse("cpu"), Host.this_machine()
    units = [Unit(find_entry(one.spec), one, target, host) for one in specializations()]
    outcomes = list(build(plan(units, store), store, jobs=2))
    assert len(outcomes) == len(units)
    assert [outcome for outcome in outcomes if outcome.manifest is None] == []
    return root


@pytest.fixture
def on_cpu(cpu_store: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """The runtime finds the artifacts of `cpu_store`, and nothing is compiled on a miss."""
    monkeypatch.setenv("TKC_STORES", str(cpu_store))
    monkeypatch.setenv("TKC_ON_MISS", "error")
    reset()
    yield
    reset()
