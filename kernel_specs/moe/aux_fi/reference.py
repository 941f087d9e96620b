"""PyTorch reference of ``moe.aux_fi``."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import torch

from kernel_specs.moe.group_count.reference import group_count, partial_counts

__all__ = ["aux_fi"]


def aux_fi(topk_idx: torch.Tensor, num_experts: int, num_aux_topk: int) -> torch.Tensor:
    """Relative load of each expert: its picks times `num_experts`, over ``num_tokens * num_aux_topk``."""
    return _scaled(group_count(topk_idx.flatten(), num_experts), topk_idx.shape[0] * num_aux_topk)


def _scaled(counts: torch.Tensor, divisor: int) -> torch.Tensor:
    return (counts.long() * counts.numel()).float() / torch.full(counts.shape, divisor).float()


def samples(specialization: Mapping[str, Any], seed: int) -> Iterator[dict[str, object]]:
    """Give launch arguments that cover the edges of what the kernel serves; outputs are poisoned."""
    generator = torch.Generator().manual_seed(seed)
    for shape, num_slices, num_experts, divisor in (
        ((1, 1), 1, 1, 1),
        ((1, 1), 0, 3, 1),
        ((325, 8), 2, 256, 2603),
        ((333, 3), 9, 72, 2**40 + 1),
        ((333, 3), 0, 5000, 2**40 + 1),
        ((11, 7), 3, 33, 7),
    ):
        yield {
            "topk_idx": torch.randint(-2, num_experts + 2, shape, generator=generator),
            "partial_counts": torch.full((num_slices * num_experts,), -7, dtype=torch.int32),
            "fi": torch.full((num_experts,), float("nan")),
            "divisor": divisor,
        }


def expected(specialization: Mapping[str, Any], args: Mapping[str, Any]) -> dict[str, torch.Tensor]:
    """The right value of each output of a launch with `args`."""
    topk_idx, num_experts = args["topk_idx"], args["fi"].numel()
    return {
        "partial_counts": partial_counts(topk_idx, args["partial_counts"].numel() // num_experts, num_experts),
        "fi": _scaled(group_count(topk_idx.flatten(), num_experts), args["divisor"]),
    }
