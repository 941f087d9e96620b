"""PyTorch reference of ``moe.group_count``."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import torch

__all__ = ["group_count"]


def group_count(group_idx: torch.Tensor, num_groups: int) -> torch.Tensor:
    """How often each group occurs; indices outside ``[0, num_groups)`` are not counted."""
    legal = group_idx[(group_idx >= 0) & (group_idx < num_groups)]
    return torch.bincount(legal, minlength=num_groups).to(torch.int32)


def partial_counts(group_idx: torch.Tensor, num_slices: int, num_groups: int) -> torch.Tensor:
    """The counts of equal slices of all indices, one slice after the other."""
    indices = group_idx.flatten()
    size = -(-indices.numel() // max(1, num_slices))
    slices = [indices[i * size : (i + 1) * size] for i in range(num_slices)]
    return torch.cat([torch.empty(0, dtype=torch.int32), *(group_count(one, num_groups) for one in slices)])


def samples(specialization: Mapping[str, Any], seed: int) -> Iterator[dict[str, object]]:
    """Give launch arguments that cover the edges of what the kernel serves; outputs are poisoned."""
    generator = torch.Generator().manual_seed(seed)
    for shape, num_slices, num_groups in (
        ((1, 1), 1, 1),
        ((1, 1), 0, 3),
        ((325, 8), 2, 256),
        ((333, 3), 9, 5000),
        ((333, 3), 0, 5000),
        ((11, 7), 3, 33),
        ((1025, 1), 0, 32),
    ):
        yield {
            "group_idx": torch.randint(-2, num_groups + 2, shape, generator=generator),
            "partial_counts": torch.full((num_slices * num_groups,), -7, dtype=torch.int32),
            "counts": torch.full((num_groups,), -7, dtype=torch.int32),
        }


def expected(specialization: Mapping[str, Any], args: Mapping[str, Any]) -> dict[str, torch.Tensor]:
    """The right value of each output of a launch with `args`."""
    group_idx, num_groups = args["group_idx"], args["counts"].numel()
    return {
        "partial_counts": partial_counts(group_idx, args["partial_counts"].numel() // num_groups, num_groups),
        "counts": group_count(group_idx.flatten(), num_groups),
    }
