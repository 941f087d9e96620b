"""``moe_topk_gate_forward``, also called ``moe_topk_gate``."""

from __future__ import annotations

import torch

from kernel_specs.moe._gate import GateOptions, launch_gate, num_shared_slots

__all__ = ["moe_topk_gate", "moe_topk_gate_forward"]


def moe_topk_gate_forward(
    logits: torch.Tensor,
    num_topk: int,
    use_shared_as_routed: bool,
    num_shared_experts: int,
    routed_scaling_factor: float,
    ep_rank: int,
    scoring_func: str = "sqrtsoftplus",
    mask: torch.Tensor | None = None,
    bias: torch.Tensor | None = None,
    image_bias: torch.Tensor | None = None,
    image_token_mask: torch.Tensor | None = None,
    fix_routing_mask: torch.Tensor | None = None,
    to_physical_map: torch.Tensor | None = None,
    logical_count: torch.Tensor | None = None,
    unmapped_topk_idx: torch.Tensor | None = None,
    force_random: torch.Tensor | None = None,
    out: tuple[torch.Tensor, torch.Tensor] | None = None,
    scores: torch.Tensor | None = None,
) -> tuple[torch.Tensor, torch.Tensor]:
    """Route each token to its best experts.

    T tokens, E experts, K picks, S shared experts that count as routed. Every tensor but `logits` may be left out.

    Args:
        logits: ``[T, E]``, float32, last stride 1, any row stride; E is 1 to 1024, T may be 0.
        num_topk: K, 1 to E; K + S is at most 32.
        use_shared_as_routed: whether each token gets S more slots, for experts E to E + S - 1, of weight 1.
        num_shared_experts: S, at least 1 where it is used.
        routed_scaling_factor: multiplies the weights of the K picks.
        ep_rank: at least 0: where the turn of an expert's replicas begins, and the seed of random experts.
        scoring_func: ``sqrtsoftplus``, ``sigmoid`` or ``softmax``.
        mask: ``[T]``, bool: tokens that are not routed get index -1 and weight 0.
        bias: ``[E]``, float32, added to the scores (softmax: to the logits) for ranking alone.
        image_bias, image_token_mask: ``[E]`` float32 and ``[T]`` bool: image tokens are ranked with this bias.
        fix_routing_mask: ``[T]``, bool: tokens whose picks are read from `unmapped_topk_idx`.
        to_physical_map, logical_count: ``[E + S, D]`` and ``[E + S]``, int32: the replicas of each expert, and
            how many of them count. Token t gets replica ``(ep_rank + 23333 t) mod count``.
        unmapped_topk_idx: ``[T, K]``, int64, any row stride: gets the logical picks, -1 where there are none.
        force_random: ``[T]``, bool: tokens that go to random physical experts with random weights.
        out: ``[T, K + S]``, int64 and float32, contiguous, to write into.
        scores: ``[T, E]``, float32, contiguous: gets all scores, 0 for tokens not routed by them.

    Returns:
        Indices ``[T, K + S]``, int64, in order of descending key, the smaller index first among equals, and
        weights ``[T, K + S]``, float32: score / (1e-20 + sum of the K scores) * scale.

    A fixed pick outside [0, E), an expert with no replica and one whose turn is past its D columns give index
    -1. NaN ranks as minus infinity; K picks are always different experts. With ``TKC_CHECK=1`` each of these
    is an error that names the value.

    Raises ArgumentError, before anything is launched, for arguments that do not fit.
    """
    return launch_gate(
        logits,
        num_topk,
        num_shared_slots(use_shared_as_routed, num_shared_experts),
        scoring_func,
        ep_rank,
        routed_scaling_factor,
        GateOptions(
            bias,
            image_bias,
            image_token_mask,
            mask,
            fix_routing_mask,
            force_random,
            to_physical_map,
            logical_count,
            unmapped_topk_idx,
            scores,
        ),
        out=out,
    )


moe_topk_gate = moe_topk_gate_forward
