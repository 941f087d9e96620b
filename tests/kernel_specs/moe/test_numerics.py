"""The operators and their artifacts, run on the CPU through the loader, bit for bit as the references say."""

from __future__ import annotations

import os

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from kernel_specs import moe
from kernel_specs import torch as reference
from kernel_specs.moe._routing import MAX_EXPERTS
from tkc.errors import ArgumentError
from tkc.model import Specialization
from tkc.registry import find_entry
from tkc.runtime.check import check_loaded

from .conftest import specializations

pytestmark = [pytest.mark.level1, pytest.mark.usefixtures("on_cpu")]


@pytest.mark.parametrize("specialization", specializations(), ids=str)
def test_every_artifact_equals_its_reference(specialization: Specialization) -> None:
    seed = int.from_bytes(os.urandom(4), "little")
    results = list(check_loaded(find_entry(specialization.spec), specialization, "cpu", seed=seed))
    assert results
    assert [result for result in results if not result.ok] == [], f"seed {seed}"


@settings(deadline=None, max_examples=60, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    num_tokens=st.integers(0, 5),
    num_experts=st.integers(1, MAX_EXPERTS),
    num_topk=st.integers(1, 32),
    padding=st.integers(0, 3),
    seed=st.integers(0, 2**32 - 1),
)
def test_topk_gate_takes_any_bits_any_experts_any_row_stride(
    num_tokens: int, num_experts: int, num_topk: int, padding: int, seed: int
) -> None:
    generator = torch.Generator().manual_seed(seed)
    bits = torch.randint(-(2**31), 2**31, (num_tokens, num_experts + padding), generator=generator)
    scores = bits.to(torch.int32).view(torch.float32)[:, :num_experts]
    num_topk = min(num_topk, num_experts)
    picked = moe.topk_gate(scores, num_topk)
    assert torch.equal(picked, reference.topk_gate(scores, num_topk))
    assert all(len(set(row)) == num_topk for row in picked.tolist())


@pytest.mark.parametrize("num_topk", range(1, 33))
def test_normalize_weight_takes_any_number_of_weights(num_topk: int) -> None:
    weights = torch.rand(9, num_topk + 2)[:, 1 : num_topk + 1]
    for ours, theirs in zip(moe.normalize_weight(weights), reference.normalize_weight(weights), strict=True):
        assert torch.equal(ours.view(torch.int32), theirs.view(torch.int32))


def test_non_numbers_stay_non_numbers() -> None:
    weights = torch.tensor([[1.0, float("nan")], [float("inf"), 1.0], [1.0, 2.0]])
    _, normalized = moe.normalize_weight(weights)
    assert normalized.isnan().tolist() == [[True, True], [True, False], [False, False]]


@pytest.mark.parametrize(
    ("scores", "num_topk", "argument"),
    [
        (torch.zeros(4, 8), 0, "num_topk"),
        (torch.zeros(4, 8), -1, "num_topk"),
        (torch.zeros(4, 8), 9, "num_topk"),
        (torch.zeros(4, 64), 33, "num_topk"),
        (torch.zeros(4, 0), 1, "scores"),
        (torch.zeros(4, 1025), 8, "scores"),
        (torch.zeros(8), 2, "scores"),
        (torch.zeros(4, 8, dtype=torch.float64), 2, "scores"),
        (torch.zeros(8, 4).T, 2, "scores"),
    ],
    ids=["zero", "negative", "too many", "over 32", "no experts", "over 1024", "rank", "dtype", "stride"],
)
def test_topk_gate_names_the_wrong_argument(scores: torch.Tensor, num_topk: int, argument: str) -> None:
    with pytest.raises(ArgumentError) as raised:
        moe.topk_gate(scores, num_topk)
    assert raised.value.argument == argument


@pytest.mark.parametrize(
    "weights",
    [torch.zeros(4), torch.zeros(4, 33), torch.zeros(4, 0), torch.zeros(4, 8, dtype=torch.float16)],
    ids=["rank", "over 32", "none", "dtype"],
)
def test_normalize_weight_names_the_wrong_argument(weights: torch.Tensor) -> None:
    with pytest.raises(ArgumentError) as raised:
        moe.normalize_weight(weights)
    assert raised.value.argument == "topk_weights"


def test_no_tokens_gives_empty_results_of_the_right_shape() -> None:
    assert moe.topk_gate(torch.zeros(0, 256), 8).shape == (0, 8)
    denominator, normalized = moe.normalize_weight(torch.zeros(0, 8))
    assert (denominator.shape, normalized.shape) == ((0,), (0, 8))
