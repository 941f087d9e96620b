"""PyTorch reference of ``moe.get_fused_mapping``."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import torch

from kernel_specs.moe.group_count.reference import group_count, partial_counts

__all__ = ["get_fused_mapping"]

Mapping8 = tuple[
    torch.Tensor,
    torch.Tensor,
    torch.Tensor,
    torch.Tensor,
    torch.Tensor,
    torch.Tensor,
    torch.Tensor,
    list[int],
]


def get_fused_mapping(
    topk_idx: torch.Tensor, num_experts: int, num_expanded_tokens: int, alignment: int, force_no_sync: bool = False
) -> Mapping8:
    """Lay tokens out by expert: see the operator of the same name."""
    trim = num_expanded_tokens == 0 and not force_no_sync
    num_positions = num_expanded_tokens
    if num_positions == 0:
        num_positions = (topk_idx.numel() + (alignment - 1) * num_experts) // alignment * alignment
    *tensors, sizes = _mapping(topk_idx, num_experts, num_positions, alignment)
    if trim:
        tensors[:3] = [tensor[: int(sizes.sum())] for tensor in tensors[:3]]
    first, second, third, fourth, start, end = tensors
    return first, second, third, fourth, start, end, sizes, sizes.tolist() if trim else []


def _mapping(topk_idx: torch.Tensor, num_experts: int, num_positions: int, alignment: int) -> list[torch.Tensor]:
    picks = topk_idx.flatten()
    counts = group_count(picks, num_experts).long()
    sizes = (counts + alignment - 1) // alignment * alignment
    ends = sizes.cumsum(0)
    starts = ends - sizes
    legal = ((picks >= 0) & (picks < num_experts)).nonzero().flatten()
    order = legal[picks[legal].sort(stable=True).indices]  # by expert, then token, then k
    experts = picks[order]
    rank = torch.arange(len(order)) - (counts.cumsum(0) - counts)[experts]
    positions = starts[experts] + rank
    fits = positions < num_positions
    order, experts, positions = order[fits], experts[fits], positions[fits]
    by_position = torch.full((3, num_positions), -1, dtype=torch.int32)
    by_position[:, positions] = torch.stack([experts, order // topk_idx.shape[1], order]).int()
    by_pick = torch.full((picks.numel(),), -1, dtype=torch.int32)
    by_pick[order] = positions.int()
    return [*by_position, by_pick.view_as(topk_idx), starts.int(), ends.int(), sizes.int()]


def samples(specialization: Mapping[str, Any], seed: int) -> Iterator[dict[str, object]]:
    """Give launch arguments that cover the edges of what the kernel serves; outputs are poisoned."""
    generator = torch.Generator().manual_seed(seed)
    for num_tokens, num_topk, num_experts, alignment, num_slices, room in (
        (1, 1, 1, 1, 1, 1),
        (1, 1, 1, 1, 0, 1),
        (333, 8, 256, 128, 2, 0),
        (300, 8, 250, 128, 1, 0),
        (300, 8, 250, 128, 0, 0),
        (400, 6, 1024, 64, 3, 0),
        (65, 9, 5, 16, 7, 0),
        (70, 8, 72, 3, 64, 0),
        (33, 4, 2, 8, 0, 0),
        (33, 4, 2, 8, 0, 60),
        (33, 4, 2, 8, 1, 60),  # too little room
    ):
        size = room or num_tokens * num_topk + (alignment - 1) * num_experts + 5
        yield {
            "topk_idx": torch.randint(-2, num_experts + 2, (num_tokens, num_topk), generator=generator),
            "slice_counts": _poison(num_slices * -(-num_experts // 4) * 4),
            **{name: _poison(size) for name in ("pos_to_expert", "pos_to_token", "pos_to_token_topk")},
            "token_topk_to_pos": _poison(num_tokens, num_topk),
            **{name: _poison(num_experts) for name in ("expert_start", "expert_end", "num_tokens_per_expert")},
            "alignment": alignment,
        }


def expected(specialization: Mapping[str, Any], args: Mapping[str, Any]) -> dict[str, torch.Tensor]:
    """The right value of each output of a launch with `args`."""
    names = [name for name in args if name not in ("topk_idx", "slice_counts", "alignment")]
    num_experts, num_positions = args["expert_start"].numel(), args["pos_to_expert"].numel()
    tensors = _mapping(args["topk_idx"], num_experts, num_positions, args["alignment"])
    num_columns = -(-num_experts // 4) * 4
    num_slices = args["slice_counts"].numel() // num_columns
    counts = partial_counts(args["topk_idx"], num_slices, num_experts).view(num_slices, num_experts)
    counts = torch.nn.functional.pad(counts, (0, num_columns - num_experts))
    return {"slice_counts": counts.flatten(), **dict(zip(names, tensors, strict=True))}


def _poison(*shape: int) -> torch.Tensor:
    return torch.full(shape, 0x7F7F7F7F, dtype=torch.int32)
