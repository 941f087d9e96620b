"""``moe_topk_gate_backward``."""

from __future__ import annotations

import torch

from kernel_specs._absent import absent
from kernel_specs.config import get_pdl
from kernel_specs.moe._checks import check_range, check_shape, check_together, checked_mode
from kernel_specs.moe._routing import BUCKET_OF, MAX_EXPERTS, MAX_TOPK
from kernel_specs.moe.moe_topk_gate_backward.spec import SCORING_FUNCS, SPEC
from tkc.errors import ArgumentError, unknown_name
from tkc.runtime import KernelTable

__all__ = ["moe_topk_gate_backward"]

_KERNELS = KernelTable(SPEC)


def moe_topk_gate_backward(
    scores: torch.Tensor,
    topk_idx: torch.Tensor,
    topk_weights: torch.Tensor,
    grad_topk_weights: torch.Tensor,
    routed_scaling_factor: float,
    scoring_func: str = "sqrtsoftplus",
    mask: torch.Tensor | None = None,
    grad_scores_sum: torch.Tensor | None = None,
    out: torch.Tensor | None = None,
) -> torch.Tensor:
    """Gradient, by the logits, of the gate's weights and of a balance loss. The same bits at every run.

    Args:
        scores: ``[T, E]``, float32, last stride 1, any row stride: what `moe_topk_gate_forward` wrote.
        topk_idx: ``[T, K]``, int64, contiguous: logical experts; -1 counts as none, and so does any index that is
            not one (an error with ``TKC_CHECK=1``). An expert picked twice gets both, in the order of the picks.
        topk_weights, grad_topk_weights: ``[T, K]``, float32, contiguous.
        routed_scaling_factor: that the weights were made with.
        scoring_func: ``sqrtsoftplus`` or ``sigmoid``.
        mask, grad_scores_sum: ``[T]`` bool and ``[N, E]`` float32 contiguous, T a multiple of N: gradient by the
            sums, over N equal runs of tokens, of the normalised scores of the tokens of the mask.
        out: ``[T, E]``, float32, contiguous, to write into.

    Returns:
        ``[T, E]``, float32; NaN for an expert whose score is NaN, picked or not. T may be 0; E is 1 to 1024, K 1 to 32.

    Raises ArgumentError, before anything is launched, for arguments that do not fit.
    """
    num_tokens, num_experts = _sizes(scores, topk_idx)
    if scoring_func not in SCORING_FUNCS:
        raise ArgumentError(unknown_name("scoring_func", str(scoring_func), SCORING_FUNCS), argument="scoring_func")
    check_together(mask=mask, grad_scores_sum=grad_scores_sum)
    num_sums = 0 if mask is None or grad_scores_sum is None else _num_sums(mask, grad_scores_sum, scores)
    if checked_mode():
        check_range("topk_idx", topk_idx, -1, num_experts)
    if out is None:
        out = scores.new_empty(num_tokens, num_experts)
    if num_tokens:
        device = scores.device
        _KERNELS[device, get_pdl(), BUCKET_OF[num_experts], scoring_func](
            scores,
            topk_idx,
            topk_weights,
            grad_topk_weights,
            absent(device, torch.bool) if mask is None else mask,
            absent(device, torch.float32, 2) if grad_scores_sum is None else grad_scores_sum,
            out,
            num_tokens // num_sums if num_sums else 1,
            routed_scaling_factor,
        )
    return out


def _sizes(scores: torch.Tensor, topk_idx: torch.Tensor) -> tuple[int, int]:
    if scores.dim() != 2 or not 1 <= scores.shape[1] <= MAX_EXPERTS:
        raise ArgumentError(
            f"scores has shape {list(scores.shape)}; expected [num_tokens, 1 to {MAX_EXPERTS} experts]",
            argument="scores",
        )
    num_tokens, num_experts = scores.shape
    if topk_idx.dim() != 2 or topk_idx.shape[0] != num_tokens or not 1 <= topk_idx.shape[1] <= MAX_TOPK:
        raise ArgumentError(
            f"topk_idx has shape {list(topk_idx.shape)}; expected [{num_tokens}, 1 to {MAX_TOPK} picks]",
            argument="topk_idx",
        )
    return num_tokens, num_experts


def _num_sums(mask: torch.Tensor, grad_scores_sum: torch.Tensor, scores: torch.Tensor) -> int:
    num_tokens, num_experts = scores.shape
    check_shape("mask", mask, num_tokens)
    num_sums = grad_scores_sum.shape[0] if grad_scores_sum.dim() else 0
    if num_sums == 0 or num_tokens % num_sums:
        raise ArgumentError(
            f"grad_scores_sum has shape {list(grad_scores_sum.shape)}; expected [N, {num_experts}] with N a divisor "
            f"of the {num_tokens} tokens",
            argument="grad_scores_sum",
        )
    check_shape("grad_scores_sum", grad_scores_sum, num_sums, num_experts)
    return num_sums
