"""A store with the family's artifacts for the CPU, built once."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from kernel_specs.moe._routing import EXPERT_BUCKETS, SCORING_FUNCS
from tkc.build import build, plan
from tkc.cache import Store
from tkc.compiler.stages import Unit
from tkc.model import Host, Specialization, Target, Value
from tkc.registry import find_entry
from tkc.runtime import reset

_CHOSEN: dict[str, list[dict[str, Value]]] = {
    "moe.topk_gate": [{"max_experts": bucket} for bucket in EXPERT_BUCKETS],
    "moe.normalize_weight": [{}],
    "moe.moe_topk_gate_forward": [
        *({"max_experts": 64, "scoring_func": scoring_func} for scoring_func in SCORING_FUNCS),
        {"max_experts": 256, "scoring_func": "sigmoid"},
    ],
    "moe.moe_topk_gate_backward": [
        {"max_experts": 64, "scoring_func": "sigmoid"},
        {"max_experts": 256, "scoring_func": "sqrtsoftplus"},
    ],
    "moe.topk_sum_and_topk_group_idx": [{"max_experts": 256}],
    "moe.group_count": [{}],
    "moe.aux_fi": [{}],
    "moe.mask_indices_by_tp": [{"dtype": "int64"}, {"dtype": "int32"}],
    "moe.inplace_unique_group_indices": [{}],
    "moe.get_fused_mapping": [{}],
    "moe.expand_to_fused": [{}],
    "moe.reduce_fused": [
        {"dtype": "bfloat16", "to_e4m3": False},
        {"dtype": "float32", "to_e4m3": True},
        {"dtype": "float8_e4m3fn", "to_e4m3": True},
    ],
}
"""Every kernel of the family, in every kind that has code of its own; buckets differ in sizes alone."""


def specializations() -> tuple[Specialization, ...]:
    """What the family's tests build, lower and interpret."""
    return tuple(find_entry(name).spec.specialization(values) for name, chosen in _CHOSEN.items() for values in chosen)


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
