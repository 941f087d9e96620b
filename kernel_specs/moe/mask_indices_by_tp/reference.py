"""PyTorch reference of ``moe.mask_indices_by_tp``."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import torch

__all__ = ["mask_indices_by_tp"]


def mask_indices_by_tp(
    indices: torch.Tensor, n: int, num_ep_ranks: int, tp_rank: int, num_tp_ranks: int
) -> torch.Tensor:
    """Keep the experts of ranks with one tp rank: see the operator of the same name."""
    return _masked(indices, n // num_ep_ranks, num_tp_ranks, tp_rank)


def _masked(indices: torch.Tensor, experts_per_rank: int, num_tp_ranks: int, tp_rank: int) -> torch.Tensor:
    experts = indices.long()
    here = (experts >= 0) & (experts // experts_per_rank % num_tp_ranks == tp_rank)
    moved = experts - tp_rank * experts_per_rank
    rows = moved // (experts_per_rank * num_tp_ranks)
    return (moved - rows * experts_per_rank * (num_tp_ranks - 1)).masked_fill(~here, -1).to(indices.dtype)


def samples(specialization: Mapping[str, Any], seed: int) -> Iterator[dict[str, object]]:
    """Give launch arguments that cover the edges of what the kernel serves; outputs are poisoned."""
    generator = torch.Generator().manual_seed(seed)
    dtype = getattr(torch, specialization["dtype"])
    for shape, limit, experts_per_rank, num_tp_ranks, tp_rank in (
        ((300, 1), 256, 8, 2, 1),
        ((1, 257), 72, 9, 4, 3),
        ((1, 1), 3, 1, 1, 0),
        ((33, 3), torch.iinfo(dtype).max, 5, 8, 2),
    ):
        yield {
            "indices": torch.randint(-3, limit, shape, generator=generator).to(dtype),
            "masked": torch.full(shape, 0x7F7F7F7F, dtype=dtype),
            "experts_per_rank": experts_per_rank,
            "num_tp_ranks": num_tp_ranks,
            "tp_rank": tp_rank,
        }


def expected(specialization: Mapping[str, Any], args: Mapping[str, Any]) -> dict[str, torch.Tensor]:
    """The right value of each output of a launch with `args`."""
    return {"masked": _masked(args["indices"], args["experts_per_rank"], args["num_tp_ranks"], args["tp_rank"])}
