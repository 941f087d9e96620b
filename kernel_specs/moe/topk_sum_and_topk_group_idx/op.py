"""``topk_sum_and_topk_group_idx``."""

from __future__ import annotations

import torch

from kernel_specs.config import get_pdl
from kernel_specs.moe._routing import BUCKET_OF, MAX_EXPERTS, MAX_GROUPS
from kernel_specs.moe.topk_sum_and_topk_group_idx.spec import SPEC
from tkc.errors import ArgumentError
from tkc.runtime import KernelTable

__all__ = ["topk_sum_and_topk_group_idx"]

_KERNELS = KernelTable(SPEC)


def topk_sum_and_topk_group_idx(scores: torch.Tensor, num_topk_sum: int, num_topk_groups: int) -> torch.Tensor:
    """Pick the best groups of experts of each token.

    Args:
        scores: ``[T, G, E / G]``, float32, contiguous; G is 1 to 32, E 1 to 1024, T may be 0. NaN counts as minus
            infinity.
        num_topk_sum: 1 or 2, at most E / G: a group's value is its best score, or the sum of its two best.
        num_topk_groups: 1 to G.

    Returns:
        ``[T, num_topk_groups]``, int64: groups in order of descending value, the smaller index first among equals.

    Raises ArgumentError, before anything is launched, for anything else.
    """
    if scores.dim() != 3 or not 1 <= scores.shape[1] <= MAX_GROUPS or not scores.is_contiguous():
        raise ArgumentError(
            f"scores has shape {list(scores.shape)} and strides {list(scores.stride())}; expected a contiguous "
            f"[num_tokens, 1 to {MAX_GROUPS} groups, experts of a group]",
            argument="scores",
        )
    num_tokens, num_groups, size = scores.shape
    if not 1 <= num_groups * size <= MAX_EXPERTS:
        raise ArgumentError(f"scores has {num_groups * size} experts; expected 1 to {MAX_EXPERTS}", argument="scores")
    if not 1 <= num_topk_sum <= min(2, size):
        raise ArgumentError(
            f"num_topk_sum is {num_topk_sum}; expected 1 to {min(2, size)}, for groups of {size}",
            argument="num_topk_sum",
        )
    if not 1 <= num_topk_groups <= num_groups:
        raise ArgumentError(
            f"num_topk_groups is {num_topk_groups}; expected 1 to {num_groups}", argument="num_topk_groups"
        )
    group_idx = scores.new_empty(num_tokens, num_topk_groups, dtype=torch.int64)
    if num_tokens:
        launch = _KERNELS[scores.device, get_pdl(), BUCKET_OF[num_groups * size]]
        launch(scores, group_idx, num_topk_sum)
    return group_idx
