"""The specs serve every legal call with few artifacts, refuse the others, and their references are right."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from kernel_specs.moe._routing import BUCKET_OF, EXPERT_BUCKETS, MAX_EXPERTS
from kernel_specs.torch import normalize_weight, stable_topk
from tkc.errors import SpecError
from tkc.grids import grid_names, load_grid
from tkc.registry import find_entry

TOPK_GATE = find_entry("moe.topk_gate").spec
NORMALIZE_WEIGHT = find_entry("moe.normalize_weight").spec


@st.composite
def legal_calls(draw: st.DrawFn) -> tuple[int, int]:
    num_experts = draw(st.integers(1, MAX_EXPERTS))
    return num_experts, draw(st.integers(1, min(num_experts, 32)))


@given(legal_calls())
def test_every_legal_call_is_served_by_the_smallest_bucket(call: tuple[int, int]) -> None:
    """D11: ahead of time only works if no call that a job can make is left out."""
    num_experts, num_topk = call
    bucket = TOPK_GATE.bind(num_experts=num_experts, num_topk=num_topk).int("max_experts")
    assert bucket == min(b for b in EXPERT_BUCKETS if b >= num_experts) == BUCKET_OF[num_experts]
    assert NORMALIZE_WEIGHT.bind(num_topk=num_topk) == NORMALIZE_WEIGHT.specialization({})


@pytest.mark.parametrize(
    ("num_experts", "num_topk", "said"),
    [
        (256, 0, "num_topk is 0"),
        (256, -1, "num_topk is -1"),
        (256, 33, "num_topk is 33"),
        (4, 5, "expected 1 to 4"),
        (0, 1, "expected 1 to 0"),
        (1025, 8, "num_experts is 1025"),
    ],
)
def test_illegal_call_is_refused_and_the_range_is_named(num_experts: int, num_topk: int, said: str) -> None:
    """The peer accepts num_topk <= 0, and launches nonsense."""
    with pytest.raises(SpecError, match=said):
        TOPK_GATE.bind(num_experts=num_experts, num_topk=num_topk)


@pytest.mark.parametrize("grid", grid_names())
def test_named_grids_need_a_handful_of_artifacts(grid: str) -> None:
    dims = load_grid(grid)
    assert len(TOPK_GATE.specializations(dims)) <= len(EXPERT_BUCKETS)
    assert len(NORMALIZE_WEIGHT.specializations(dims)) <= 1
    for model in dims:
        assert bool(list(TOPK_GATE.grid(model))) == bool(model.num_experts)


def test_stable_topk_is_k_rounds_of_taking_the_first_of_the_largest() -> None:
    generator = torch.Generator().manual_seed(5)
    scores = torch.randint(-2, 3, (40, 19), generator=generator).to(torch.float32)
    scores[torch.rand(scores.shape, generator=generator) < 0.1] = float("-inf")
    scores[torch.rand(scores.shape, generator=generator) < 0.1] = float("nan")
    scores[torch.rand(scores.shape, generator=generator) < 0.1] = -0.0
    for row, picked in zip(scores.tolist(), stable_topk(scores, 19).tolist(), strict=True):
        left = {index: float("-inf") if score != score else score for index, score in enumerate(row)}
        for index in picked:
            assert index == min(left, key=lambda i: (-left[i], i))
            del left[index]


@pytest.mark.parametrize("num_topk", [1, 2, 3, 5, 6, 8, 9, 16, 17, 31, 32])
def test_the_sum_is_the_tree_that_the_definition_says(num_topk: int) -> None:
    """Magnitudes differ so much that any other order of adding gives other bits."""
    generator = torch.Generator().manual_seed(num_topk)
    exponents = torch.randint(-30, 30, (64, num_topk), generator=generator)
    weights = torch.ldexp(torch.randn(64, num_topk, generator=generator), exponents)
    sums = [weights[:, j].clone() for j in range(num_topk)]
    for mask in (16, 8, 4, 2, 1):
        for j in range(num_topk):
            if j & mask == 0 and j ^ mask < num_topk:
                sums[j] += sums[j ^ mask]
    denominator, normalized = normalize_weight(weights)
    assert torch.equal(denominator, sums[0] + torch.tensor(1e-20))
    assert torch.equal(normalized, weights / denominator[:, None])


def test_row_of_zeros_gives_zeros() -> None:
    """The peer's reference lacks the 1e-20, and gives NaN."""
    denominator, normalized = normalize_weight(torch.zeros(2, 8))
    assert torch.equal(denominator, torch.full((2,), 1e-20))
    assert torch.equal(normalized, torch.zeros(2, 8))
