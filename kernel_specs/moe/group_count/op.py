"""``group_count``."""

from __future__ import annotations

import torch

from kernel_specs._matrices import as_matrix
from kernel_specs.config import get_pdl
from kernel_specs.moe._checks import check_range, checked_mode
from kernel_specs.moe._indices import check_number, room_for_partial_counts
from kernel_specs.moe.group_count.spec import SPEC
from tkc.errors import ArgumentError
from tkc.runtime import KernelTable

__all__ = ["group_count"]

_KERNELS = KernelTable(SPEC)


def group_count(group_idx: torch.Tensor, num_groups: int) -> torch.Tensor:
    """How often each group occurs.

    Args:
        group_idx: ``[T, K]`` or any other shape, int64, contiguous. -1 is not counted, nor is any other index
            that is no group (an error with ``TKC_CHECK=1``).
        num_groups: G, at least 1.

    Returns:
        ``[G]``, int32.

    Raises ArgumentError, before anything is launched, for anything else.
    """
    if not group_idx.is_contiguous():
        raise ArgumentError(
            f"group_idx has strides {list(group_idx.stride())}; expected a contiguous tensor. Call .contiguous()",
            argument="group_idx",
        )
    if num_groups < 1:
        raise ArgumentError(f"num_groups is {num_groups}; expected at least 1", argument="num_groups")
    if not check_number("group_idx", group_idx):
        return torch.zeros(num_groups, dtype=torch.int32, device=group_idx.device)
    if checked_mode():
        check_range("group_idx", group_idx, -1, num_groups)
    counts = group_idx.new_empty(num_groups, dtype=torch.int32)
    partial_counts = room_for_partial_counts(group_idx, num_groups)
    _KERNELS[group_idx.device, get_pdl()](as_matrix(group_idx), partial_counts, counts)
    return counts
