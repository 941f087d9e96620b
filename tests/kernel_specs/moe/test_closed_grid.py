"""D11: no legal call on a model's dimensions asks for an artifact that its grid lacks. Nothing is launched."""

from __future__ import annotations

import importlib
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from kernel_specs import moe
from tkc.grids import load_grid
from tkc.model import KernelSpec, Specialization

MODELS = [*load_grid("deepseek-v3"), *load_grid("deepseek-v4")]
_LAUNCHING = (
    "_gate",
    "_expand",
    "topk_gate.op",
    "normalize_weight.op",
    "moe_topk_gate_backward.op",
    "topk_sum_and_topk_group_idx.op",
    "group_count.op",
    "aux_fi.op",
    "mask_indices_by_tp.op",
    "inplace_unique_group_indices.op",
    "get_fused_mapping.op",
    "reduce_fused.op",
)


class _Asked(dict[Any, Any]):
    """In place of a kernel table: remembers what is asked for, and launches nothing."""

    def __init__(self, spec: KernelSpec, asked: set[Specialization]) -> None:
        super().__init__()
        self._spec = spec
        self._asked = asked

    def __missing__(self, key: tuple[Any, ...]) -> Callable[..., None]:
        axes = [axis.name for axis in self._spec.const]
        self._asked.add(self._spec.specialization(dict(zip(axes, key[2:], strict=True))))
        return lambda *_: None


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> Iterator[set[Specialization]]:
    found: set[Specialization] = set()
    for name in _LAUNCHING:
        module = importlib.import_module(f"kernel_specs.moe.{name}")
        monkeypatch.setattr(module, "_KERNELS", _Asked(module._KERNELS.spec, found))
    yield found


def test_every_launching_module_is_watched() -> None:
    from pathlib import Path

    folder = Path(importlib.import_module("kernel_specs.moe._gate").__file__ or "").parent
    launching = {path for path in folder.rglob("*.py") if "KernelTable(SPEC)" in path.read_text()}
    assert {".".join(path.relative_to(folder).with_suffix("").parts) for path in launching} == set(_LAUNCHING)


@settings(deadline=None, max_examples=80, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    dims=st.sampled_from(MODELS),
    num_tokens=st.integers(1, 40),
    padding=st.integers(0, 3),
    flags=st.sets(st.sampled_from(["mask", "bias", "image", "fixed", "map", "random", "scores", "aux", "columns"])),
    dtype=st.sampled_from([torch.bfloat16, torch.float32, torch.float8_e4m3fn]),
    to_e4m3=st.booleans(),
)
def test_no_legal_call_of_a_model_misses(
    asked: set[Specialization],
    dims: Any,
    num_tokens: int,
    padding: int,
    flags: set[str],
    dtype: torch.dtype,
    to_e4m3: bool,
) -> None:
    asked.clear()
    _route(dims, num_tokens, padding, flags)
    _lay_out(dims, num_tokens, flags, dtype, to_e4m3)
    grid: set[Specialization] = set()
    for spec in {name.spec for name in asked}:
        kernel = importlib.import_module(f"kernel_specs.{spec}.spec")
        grid |= set(kernel.SPEC.specializations([dims]))
    assert asked and asked <= grid, asked - grid


def _route(dims: Any, num_tokens: int, padding: int, flags: set[str]) -> None:
    num_experts, num_topk, num_shared = dims.num_experts, dims.num_topk, 1
    logits = torch.zeros(num_tokens, num_experts + padding)[:, padding:]
    some = torch.ones(num_tokens, dtype=torch.bool)
    replicas = torch.ones(num_experts + num_shared, 2, dtype=torch.int32)
    optional = {
        "mask": some if "mask" in flags else None,
        "bias": logits[0].clone() if "bias" in flags else None,
        "image_bias": logits[0].clone() if "image" in flags else None,
        "image_token_mask": some if "image" in flags else None,
        "fix_routing_mask": some if "fixed" in flags else None,
        "unmapped_topk_idx": torch.zeros(num_tokens, num_topk, dtype=torch.int64) if "fixed" in flags else None,
        "to_physical_map": replicas if "map" in flags else None,
        "logical_count": replicas[:, 0].clone() if "map" in flags else None,
        "force_random": some if "random" in flags else None,
        "scores": torch.zeros(num_tokens, num_experts) if "scores" in flags else None,
    }
    for scoring_func in dims.scoring_funcs:
        picked, weights = moe.moe_topk_gate(
            logits, num_topk, True, num_shared, 2.5, 3, scoring_func=scoring_func, **optional
        )
        groups = (dims.num_topk_groups, dims.num_groups)
        moe.top2_sum_gate(logits, logits[0], num_topk, *groups, True, 1, 2.5, 0, 8, 1, 2, scoring_func)
        aux = (some, torch.zeros(1, num_experts)) if "aux" in flags else (None, None)
        moe.moe_topk_gate_backward(logits, picked, weights, weights, 2.5, scoring_func, *aux)
    moe.topk_gate(logits, num_topk)
    moe.normalize_weight(weights)
    if dims.num_groups:
        grouped = torch.zeros(num_tokens, dims.num_groups, num_experts // dims.num_groups)
        moe.topk_sum_and_topk_group_idx(grouped, 2, dims.num_topk_groups)


def _lay_out(dims: Any, num_tokens: int, flags: set[str], dtype: torch.dtype, to_e4m3: bool) -> None:
    picked = torch.zeros(num_tokens, dims.num_topk, dtype=torch.int64)
    moe.group_count(picked, dims.num_experts)
    moe.aux_fi(picked, dims.num_experts, dims.num_topk)
    moe.mask_indices_by_tp(picked if "map" in flags else picked.int(), dims.num_experts, 8, 1, 2)
    moe.inplace_unique_group_indices(picked, 8)
    moe.get_fused_mapping(picked, dims.num_experts, 512, 128)
    positions, experts = picked.int(), torch.zeros(512, dtype=torch.int32)
    x = torch.zeros(num_tokens, dims.hidden).to(dtype)
    moe.expand_to_fused(x, positions, experts)
    sf = torch.zeros(num_tokens, dims.hidden // 128)
    moe.expand_to_fused_with_sf((x, sf), 128, positions, experts, "columns" in flags)
    weights = torch.zeros(num_tokens, dims.num_topk) if "bias" in flags else None
    moe.reduce_fused(torch.zeros(512, dims.hidden).to(dtype), weights, positions, "e4m3" if to_e4m3 else "")
