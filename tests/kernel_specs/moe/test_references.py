"""The references of the gates are right: against known answers, and against loops that say it another way."""

from __future__ import annotations

import pytest
import torch

from kernel_specs.moe._reference import Gate, philox, route
from kernel_specs.torch import get_fused_mapping, mask_indices_by_tp, moe_topk_gate_forward, top2_sum_gate


def test_philox_gives_the_published_numbers() -> None:
    """Random123's known answer for a counter and a key of zeros."""
    assert philox(0, 0) == (0x6627E8D5, 0xE169C58D, 0xBC57AC4C, 0x9B00DBD8)


@pytest.mark.parametrize("scoring_func", ["sqrtsoftplus", "sigmoid", "softmax"])
def test_groups_compete_by_their_two_best_keys(scoring_func: str) -> None:
    logits = torch.randn(20, 24, generator=torch.Generator().manual_seed(3))
    bias = torch.randint(-4, 5, (24,), generator=torch.Generator().manual_seed(4)) / 4
    picked, weights = top2_sum_gate(logits, bias, 4, 2, 6, False, 0, 2.0, 0, 4, 0, 1, scoring_func)
    scores = {
        "sqrtsoftplus": torch.nn.functional.softplus(logits).sqrt(),
        "sigmoid": logits.sigmoid(),
        "softmax": logits.softmax(1),
    }[scoring_func]
    keys = (logits if scoring_func == "softmax" else scores) + bias
    for token in range(20):
        best = [sum(sorted(keys[token, 4 * g : 4 * g + 4].tolist())[-2:]) for g in range(6)]
        groups = sorted(range(6), key=lambda g: (-best[g], g))[:2]
        rest = [e for g in groups for e in range(4 * g, 4 * g + 4)]
        want = sorted(rest, key=lambda e: (-keys[token, e].item(), e))[:4]
        assert picked[token].tolist() == want
        share = scores[token, want] / scores[token, want].sum() * 2
        assert torch.allclose(weights[token], share, rtol=1e-5)


def test_tp_ranks_share_the_experts_and_number_them_without_the_others() -> None:
    """8 ranks of 4 experts, 2 tp ranks: each expert is seen by exactly one of them, as 0 to 15 in order."""
    experts = torch.arange(32)
    seen = [mask_indices_by_tp(experts[None], 32, 8, rank, 2)[0] for rank in range(2)]
    assert all((seen[0] < 0) ^ (seen[1] < 0))
    for rank in range(2):
        assert seen[rank][seen[rank] >= 0].tolist() == list(range(16))
        assert (experts[seen[rank] >= 0] // 4 % 2 == rank).all()


def test_random_experts_are_different_and_within_the_population() -> None:
    logits = torch.zeros(200, 12)
    everywhere = torch.ones(200, dtype=torch.bool)
    picked, weights = moe_topk_gate_forward(logits, 8, True, 2, 1.0, 7, force_random=everywhere)
    assert all(len(set(row)) == 10 for row in picked.tolist())
    assert picked.min() == 0 and picked.max() == 13
    assert (weights > 0).all() and (weights <= 1).all()


def test_replicas_take_turns_and_wrong_counts_give_none() -> None:
    """The peer divides by a count of zero, and overflows after 92 000 tokens."""
    counts = torch.tensor([2, 0, 9], dtype=torch.int32)
    table = torch.arange(6, dtype=torch.int32).view(3, 2)
    gate = Gate(3, 0, 1.0, 1, "sigmoid", to_physical_map=table, logical_count=counts)
    routed = route(torch.tensor([[3.0, 2.0, 1.0]]).repeat(100_000, 1), gate).topk_idx
    turn = (1 + torch.arange(100_000) * 23333) % 2
    assert torch.equal(routed[:, 0], turn)
    assert (routed[:, 1] == -1).all()
    nine = (1 + torch.arange(100_000) * 23333) % 9
    assert torch.equal(routed[:, 2], torch.where(nine < 2, 4 + nine, -1))


def test_mapping_is_in_order_of_expert_then_token_then_k() -> None:
    topk_idx = torch.randint(-1, 7, (50, 3), generator=torch.Generator().manual_seed(1))
    experts, tokens, picks, positions, start, end, sizes, listed = get_fused_mapping(topk_idx, 7, 0, 8)
    flat = topk_idx.flatten().tolist()
    for expert in range(7):
        mine = [i for i, value in enumerate(flat) if value == expert]
        first = int(start[expert])
        assert picks[first : first + len(mine)].tolist() == mine
        assert (picks[first + len(mine) : int(end[expert])] == -1).all()
        assert int(sizes[expert]) % 8 == 0 and listed[expert] == int(sizes[expert])
    used = picks >= 0
    assert torch.equal(tokens[used], picks[used] // 3) and (experts[~used] == -1).all()
    assert torch.equal(positions.flatten()[picks[used].long()], used.nonzero().flatten().int())
