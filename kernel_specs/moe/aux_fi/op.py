"""``aux_fi``."""

from __future__ import annotations

import torch

from kernel_specs.config import get_pdl
from kernel_specs.moe._checks import check_range, checked_mode
from kernel_specs.moe._indices import check_number, room_for_partial_counts
from kernel_specs.moe.aux_fi.spec import SPEC
from tkc.errors import ArgumentError
from tkc.runtime import KernelTable

__all__ = ["aux_fi"]

_KERNELS = KernelTable(SPEC)


def aux_fi(topk_idx: torch.Tensor, num_experts: int, num_aux_topk: int) -> torch.Tensor:
    """Relative load of each expert, for a balance loss: 1 where all get the same. The same bits at every run.

    Args:
        topk_idx: ``[T, K]``, int64, contiguous. -1 counts for nobody, and so does any other index that is no
            expert (an error with ``TKC_CHECK=1``).
        num_experts: E, at least 1.
        num_aux_topk: picks of a token that count, at least 1.

    Returns:
        ``[E]``, float32: picks of the expert times E, over ``T * num_aux_topk``; zeros if T is 0.

    Raises ArgumentError, before anything is launched, for anything else.
    """
    if topk_idx.dim() != 2 or not topk_idx.is_contiguous():
        raise ArgumentError(
            f"topk_idx has shape {list(topk_idx.shape)} and strides {list(topk_idx.stride())}; expected a contiguous "
            "[num_tokens, num_topk]",
            argument="topk_idx",
        )
    for name, value in (("num_experts", num_experts), ("num_aux_topk", num_aux_topk)):
        if value < 1:
            raise ArgumentError(f"{name} is {value}; expected at least 1", argument=name)
    if not check_number("topk_idx", topk_idx):
        return torch.zeros(num_experts, dtype=torch.float32, device=topk_idx.device)
    if checked_mode():
        check_range("topk_idx", topk_idx, -1, num_experts)
    fi = topk_idx.new_empty(num_experts, dtype=torch.float32)
    partial_counts = room_for_partial_counts(topk_idx, num_experts)
    divisor = topk_idx.shape[0] * num_aux_topk
    _KERNELS[topk_idx.device, get_pdl()](topk_idx, partial_counts, fi, divisor)
    return fi
