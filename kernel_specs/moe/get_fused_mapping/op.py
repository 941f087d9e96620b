"""``get_fused_mapping``."""

from __future__ import annotations

import torch

from kernel_specs.config import get_pdl
from kernel_specs.moe._checks import check_range, checked_mode
from kernel_specs.moe._routing import MAX_EXPERTS
from kernel_specs.moe.get_fused_mapping.spec import SPEC
from tkc.errors import ArgumentError
from tkc.runtime import KernelTable

__all__ = ["get_fused_mapping"]

_KERNELS = KernelTable(SPEC)
_INT32_MAX = 2**31 - 1

_SLICE = 1024
"""Picks that are worth a slice: as many as a block sorts at once."""

_MAX_SLICES = 128
"""Most slices, because each adds up the counts of all. With 64, half a million picks take 1.5 times as long."""

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
    """Say where each pick of each token goes when tokens are laid out by expert.

    Picks are in order of expert, then token, then k, whatever the device. Each expert has a multiple of
    `alignment` positions; those left over are padding.

    Args:
        topk_idx: ``[T, K]``, int64, contiguous. -1 gets no position, nor does any other index that is no expert
            (an error with ``TKC_CHECK=1``).
        num_experts: E, 1 to 1024.
        num_expanded_tokens: N, positions that there is room for. A pick past them gets none (an error with
            ``TKC_CHECK=1``). 0: as many as there can be, ``(T K + (alignment - 1) E) // alignment * alignment``.
        alignment: at least 1.
        force_no_sync: with N = 0, keep that many, and do not ask the device how many are used.

    Returns:
        ``pos_to_expert``, ``pos_to_token`` and ``pos_to_token_topk`` ``[N]``, -1 for padding, the last being
        ``token * K + k``; ``token_topk_to_pos`` ``[T, K]``, -1 for none; ``expert_start``, ``expert_end`` and
        ``num_tokens_per_expert`` ``[E]``, padding included; all int32. Last a list: with N = 0, unless
        `force_no_sync`, the tensors by position are cut to what is used, which synchronises with the device,
        and the list holds ``num_tokens_per_expert``; else it is empty.

    Raises ArgumentError, before anything is launched, for anything else.
    """
    num_tokens, num_topk = _checked(topk_idx, num_experts, num_expanded_tokens, alignment)
    if checked_mode():
        check_range("topk_idx", topk_idx, -1, num_experts)
    num_picks = num_tokens * num_topk
    room = num_expanded_tokens or (num_picks + (alignment - 1) * num_experts) // alignment * alignment
    if room + alignment * num_experts > _INT32_MAX:
        raise ArgumentError(f"topk_idx asks for {room} positions; expected less than 2^31", argument="topk_idx")
    num_slices = min(_MAX_SLICES, -(-num_picks // _SLICE))
    num_slice_counts = num_slices * (-(-num_experts // 4) * 4) if num_slices > 1 else 0
    # Seven tensors in one allocation: another costs the host more than a view.
    slice_counts, *tensors = topk_idx.new_empty(
        num_slice_counts + 3 * (room + num_experts), dtype=torch.int32
    ).unsafe_split_with_sizes((num_slice_counts, room, room, room, num_experts, num_experts, num_experts))
    by_position, by_expert = tensors[:3], tensors[3:]
    by_pick = topk_idx.new_empty(num_tokens, num_topk, dtype=torch.int32)
    if num_picks:
        _KERNELS[topk_idx.device, get_pdl()](topk_idx, slice_counts, *by_position, by_pick, *by_expert, alignment)
    else:
        for tensor in by_position:
            tensor.fill_(-1)
        for tensor in by_expert:
            tensor.fill_(0)
    sizes: list[int] = []
    if not num_expanded_tokens and not force_no_sync:
        sizes = by_expert[2].tolist()
        by_position = [tensor[: sum(sizes)] for tensor in by_position]
    elif checked_mode() and num_expanded_tokens:
        _check_room(by_expert[1], room)
    return (*by_position, by_pick, *by_expert, sizes)  # type: ignore[return-value]


def _checked(topk_idx: torch.Tensor, num_experts: int, num_expanded_tokens: int, alignment: int) -> tuple[int, int]:
    if topk_idx.dim() != 2:
        raise ArgumentError(
            f"topk_idx has shape {list(topk_idx.shape)}; expected [num_tokens, num_topk]", argument="topk_idx"
        )
    if not 1 <= num_experts <= MAX_EXPERTS:
        raise ArgumentError(f"num_experts is {num_experts}; expected 1 to {MAX_EXPERTS}", argument="num_experts")
    if num_expanded_tokens < 0:
        raise ArgumentError(
            f"num_expanded_tokens is {num_expanded_tokens}; expected at least 0", argument="num_expanded_tokens"
        )
    if alignment < 1:
        raise ArgumentError(f"alignment is {alignment}; expected at least 1", argument="alignment")
    num_tokens, num_topk = topk_idx.shape
    return num_tokens, num_topk


def _check_room(expert_end: torch.Tensor, room: int) -> None:
    needed = int(expert_end[-1])
    if needed > room:
        raise ArgumentError(
            f"num_expanded_tokens is {room}; the tokens need {needed} positions", argument="num_expanded_tokens"
        )
