"""PyTorch reference of ``moe.topk_sum_and_topk_group_idx``."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import torch

from kernel_specs.moe.topk_gate.reference import stable_topk

__all__ = ["topk_sum_and_topk_group_idx"]


def topk_sum_and_topk_group_idx(scores: torch.Tensor, num_topk_sum: int, num_topk_groups: int) -> torch.Tensor:
    """Best groups of experts of each token: see the operator of the same name."""
    ranked = scores.masked_fill(scores.isnan(), -torch.inf)
    values = ranked.sort(dim=2, descending=True).values[..., :num_topk_sum].sum(2)
    return stable_topk(values, num_topk_groups)


def samples(specialization: Mapping[str, Any], seed: int) -> Iterator[dict[str, object]]:
    """Give launch arguments that cover the edges of what `specialization` serves; outputs are poisoned."""
    generator = torch.Generator().manual_seed(seed)
    room = specialization["max_experts"]
    for num_tokens, num_groups, size, num_topk_groups, num_topk_sum in (
        (5, 8, room // 8, 4, 2),
        (33, 8, room // 8, 8, 1),
        (3, 32, room // 32, 7, 2),
        (4, 5, room // 5, 2, 2),
        (2, 1, room, 1, 2),
        (6, 17, 2, 17, 1),
    ):
        shape = (num_tokens, num_groups, size)
        for scores in (
            torch.randn(shape, generator=generator),
            torch.randint(-2, 3, shape, generator=generator).float(),
            torch.randint(-1, 2, shape, generator=generator).float().log(),  # NaN, minus infinity and zero
        ):
            yield {
                "scores": scores,
                "group_idx": torch.full((num_tokens, num_topk_groups), 0x7F7F7F7F7F7F7F7F),
                "num_topk_sum": num_topk_sum,
            }


def expected(specialization: Mapping[str, Any], args: Mapping[str, Any]) -> dict[str, torch.Tensor]:
    """The right value of each output of a launch with `args`."""
    num_topk_groups = args["group_idx"].shape[1]
    return {"group_idx": topk_sum_and_topk_group_idx(args["scores"], args["num_topk_sum"], num_topk_groups)}
