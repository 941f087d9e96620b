"""``topk_gate``."""

from __future__ import annotations

import torch

from kernel_specs.config import get_pdl
from kernel_specs.moe._routing import BUCKET_OF, MAX_EXPERTS, MAX_TOPK
from kernel_specs.moe.topk_gate.spec import SPEC
from tkc.errors import ArgumentError
from tkc.runtime import KernelTable

__all__ = ["topk_gate"]

_KERNELS = KernelTable(SPEC)


def topk_gate(scores: torch.Tensor, num_topk: int) -> torch.Tensor:
    """Pick the `num_topk` best experts of each token.

    Args:
        scores: ``[num_tokens, num_experts]``, float32, last stride 1, any row stride. `num_experts` is 1 to
            1024, `num_tokens` may be 0. NaN counts as minus infinity.
        num_topk: 1 to 32, and at most `num_experts`.

    Returns:
        ``[num_tokens, num_topk]``, int64, contiguous: indices in order of descending score, the smaller index
        first among equals. Always `num_topk` different experts, whatever the scores.

    Raises ArgumentError for anything else. Definition: the first `num_topk` of a stable descending sort.
    """
    if scores.dim() != 2:
        raise ArgumentError(
            f"scores has shape {tuple(scores.shape)}; expected [num_tokens, num_experts]", argument="scores"
        )
    num_tokens, num_experts = scores.shape
    if not 0 < num_topk <= num_experts <= MAX_EXPERTS or num_topk > MAX_TOPK:
        raise _impossible(num_topk, num_experts)
    topk_idx = scores.new_empty(num_tokens, num_topk, dtype=torch.int64)
    if num_tokens:
        _KERNELS[scores.device, get_pdl(), BUCKET_OF[num_experts]](scores, topk_idx)
    return topk_idx


def _impossible(num_topk: int, num_experts: int) -> ArgumentError:
    if not 1 <= num_experts <= MAX_EXPERTS:
        return ArgumentError(f"scores has {num_experts} experts; expected 1 to {MAX_EXPERTS}", argument="scores")
    return ArgumentError(
        f"num_topk is {num_topk}; expected 1 to {min(num_experts, MAX_TOPK)} "
        f"(at most the {num_experts} experts there are, and {MAX_TOPK})",
        argument="num_topk",
    )
