"""PyTorch reference of ``moe.inplace_unique_group_indices``."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import torch

__all__ = ["inplace_unique_group_indices"]


def inplace_unique_group_indices(group_indices: torch.Tensor, num_groups: int) -> None:
    """Of equal indices of a token keep the first; the others become -1, in place."""
    group_indices.copy_(_unique(group_indices, num_groups))


def _unique(group_indices: torch.Tensor, num_groups: int) -> torch.Tensor:
    equal = group_indices[:, :, None] == group_indices[:, None, :]
    repeated = equal.tril(-1).any(2) & (group_indices >= 0) & (group_indices < num_groups)
    return group_indices.masked_fill(repeated, -1)


def samples(specialization: Mapping[str, Any], seed: int) -> Iterator[dict[str, object]]:
    """Give launch arguments that cover the edges of what the kernel serves."""
    generator = torch.Generator().manual_seed(seed)
    for num_tokens, num_topk, num_groups, padding in (
        (33, 8, 8, 0),
        (130, 6, 4, 3),
        (5, 32, 72, 0),
        (9, 31, 16, 1),
        (3, 1, 1, 0),
        (77, 9, 128, 0),
    ):
        shape = (num_tokens, num_topk + padding)
        indices = torch.randint(-2, num_groups + 2, shape, generator=generator)
        yield {"group_indices": indices[:, padding:], "num_groups": num_groups}


def expected(specialization: Mapping[str, Any], args: Mapping[str, Any]) -> dict[str, torch.Tensor]:
    """The right value of each output of a launch with `args`."""
    return {"group_indices": _unique(args["group_indices"], args["num_groups"])}
