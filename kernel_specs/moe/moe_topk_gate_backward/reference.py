"""PyTorch reference of ``moe.moe_topk_gate_backward``, in float64."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import torch

from kernel_specs.moe._reference import score

__all__ = ["moe_topk_gate_backward"]

_EPSILON = 1e-20


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
    """Gradient by the logits: see the operator of the same name for every argument."""
    num_tokens, num_experts = scores.shape
    none = (topk_idx < 0) | (topk_idx >= num_experts)
    index, values = topk_idx.masked_fill(none, 0), scores.double()
    weights, grads = topk_weights.double().masked_fill(none, 0), grad_topk_weights.double().masked_fill(none, 0)
    divisor = values.gather(1, index).masked_fill(none, 0).sum(1, keepdim=True) + _EPSILON
    routes = (routed_scaling_factor * grads - (grads * weights).sum(1, keepdim=True)) / divisor
    slopes = torch.zeros_like(values).scatter_add_(1, index, routes.masked_fill(none, 0))
    if mask is not None and grad_scores_sum is not None and num_tokens:
        total = values.sum(1, keepdim=True)
        grad_sums = grad_scores_sum.double().repeat_interleave(num_tokens // grad_scores_sum.shape[0], 0)
        mean = (grad_sums * values).sum(1, keepdim=True) / total
        slopes = torch.where(mask[:, None], slopes + (grad_sums - mean) / total, slopes)
    if scoring_func == "sigmoid":
        derivative = values * (1 - values)
    else:
        derivative = torch.where(values == 0, 0, -torch.expm1(-values.square()) / (2 * values))
    grad_logits = (derivative * slopes).float()
    return grad_logits if out is None else out.copy_(grad_logits)


def samples(specialization: Mapping[str, Any], seed: int) -> Iterator[dict[str, object]]:
    """Give launch arguments that cover the edges of what `specialization` serves; outputs are poisoned."""
    generator = torch.Generator().manual_seed(seed)
    room = specialization["max_experts"]
    for num_tokens, num_experts, num_topk, num_sums, gap, shift in (
        (33, room, 8, 0, 0, 0),
        (5, room - 1, 3, 0, 0, 0),
        (9, room - 4, 6, 0, 4, 0),
        (7, room, 16, 0, 3, 1),
        (6, 40, 9, 0, 0, 0),
        (3, 40, 32, 0, 3, 0),
        (33, room, 8, 3, 3, 0),
        (6, room - 1, 6, 6, 3, 0),
        (8, room - 17, 32, 1, 0, 0),
        (2, 1, 1, 1, 3, 0),
        (0, room, 8, 0, 3, 0),
    ):
        logits = torch.randn(num_tokens, shift + num_experts + gap, generator=generator) * 4
        scores = score(logits, specialization["scoring_func"])[:, shift : shift + num_experts]
        for low in (0, -2):  # distinct picks; then repeated ones, and some that are none, and scores that are NaN
            order = torch.rand(num_tokens, num_experts, generator=generator).argsort(1)
            index = order[:, :num_topk].clone(memory_format=torch.contiguous_format)
            if low:
                index = torch.randint(low, num_experts + 1, index.shape, generator=generator)
                scores = scores.clone()
                scores[1::5, num_experts // 3] = torch.nan
            shape = (num_tokens, num_topk)
            yield {
                "scores": scores,
                "topk_idx": index,
                "topk_weights": torch.rand(shape, generator=generator),
                "grad_topk_weights": torch.randn(shape, generator=generator),
                "mask": torch.rand(num_tokens if num_sums else 0, generator=generator) < 0.7,
                "grad_scores_sum": torch.randn(num_sums, num_experts if num_sums else 1, generator=generator),
                "grad_logits": torch.full((num_tokens, num_experts), 77.0),
                "tokens_per_sum": max(num_tokens // max(num_sums, 1), 1),
                "routed_scaling_factor": 2.5,
            }


def expected(specialization: Mapping[str, Any], args: Mapping[str, Any]) -> dict[str, torch.Tensor]:
    """The right value of each output of a launch with `args`."""
    has_aux = args["grad_scores_sum"].shape[0] > 0
    grad_logits = moe_topk_gate_backward(
        args["scores"],
        args["topk_idx"],
        args["topk_weights"],
        args["grad_topk_weights"],
        args["routed_scaling_factor"],
        specialization["scoring_func"],
        args["mask"] if has_aux else None,
        args["grad_scores_sum"] if has_aux else None,
    )
    return {"grad_logits": grad_logits}
