"""``inplace_unique_group_indices``."""

from __future__ import annotations

import torch

from kernel_specs.config import get_pdl
from kernel_specs.moe._checks import check_range, checked_mode
from kernel_specs.moe._routing import MAX_TOPK
from kernel_specs.moe.inplace_unique_group_indices.spec import MAX_GROUPS, SPEC
from tkc.errors import ArgumentError
from tkc.runtime import KernelTable

__all__ = ["inplace_unique_group_indices"]

_KERNELS = KernelTable(SPEC)


def inplace_unique_group_indices(group_indices: torch.Tensor, num_groups: int) -> None:
    """Of equal indices of a token keep the first; the others become -1, in place.

    Args:
        group_indices: ``[T, K]``, int64, last stride 1, any row stride; K is 1 to 32. Indices that are no group
            are left alone (an error with ``TKC_CHECK=1``, unless -1).
        num_groups: 1 to 2^26.

    Raises ArgumentError, before anything is launched, for anything else.
    """
    if group_indices.dim() != 2 or not 1 <= group_indices.shape[1] <= MAX_TOPK:
        raise ArgumentError(
            f"group_indices has shape {list(group_indices.shape)}; expected [num_tokens, 1 to {MAX_TOPK}]",
            argument="group_indices",
        )
    if not 1 <= num_groups <= MAX_GROUPS:
        raise ArgumentError(f"num_groups is {num_groups}; expected 1 to {MAX_GROUPS}", argument="num_groups")
    if checked_mode():
        check_range("group_indices", group_indices, -1, num_groups)
    if group_indices.shape[0]:
        _KERNELS[group_indices.device, get_pdl()](group_indices, num_groups)
