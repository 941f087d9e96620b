"""PyTorch reference of ``top2_sum_gate``."""

from __future__ import annotations

import torch

from kernel_specs.moe._reference import Gate, route

__all__ = ["top2_sum_gate"]


def top2_sum_gate(
    logits: torch.Tensor,
    bias: torch.Tensor,
    num_topk: int,
    num_topk_groups: int,
    num_groups: int,
    use_shared_as_routed: bool,
    num_shared_experts: int,
    routed_scaling_factor: float,
    ep_rank: int,
    num_ep_ranks: int,
    tp_rank: int,
    num_tp_ranks: int,
    scoring_func: str,
    mask: torch.Tensor | None = None,
    fix_routing_mask: torch.Tensor | None = None,
    to_physical_map: torch.Tensor | None = None,
    logical_count: torch.Tensor | None = None,
    unmapped_topk_idx: torch.Tensor | None = None,
) -> tuple[torch.Tensor, torch.Tensor]:
    """Route tokens to the best experts of their best groups: see the operator of the same name."""
    num_physical = logits.shape[1] + (0 if to_physical_map is None else to_physical_map.shape[1] - 1)
    gate = Gate(
        num_topk=num_topk,
        num_shared=num_shared_experts if use_shared_as_routed else 0,
        scale=routed_scaling_factor,
        ep_rank=ep_rank,
        scoring_func=scoring_func,
        num_groups=num_groups,
        num_topk_groups=num_topk_groups,
        in_order=True,
        experts_per_rank=num_physical // num_ep_ranks,
        num_tp_ranks=num_tp_ranks,
        tp_rank=tp_rank,
        mask=mask,
        bias=bias,
        fix_routing_mask=fix_routing_mask,
        to_physical_map=to_physical_map,
        logical_count=logical_count,
        unmapped_topk_idx=unmapped_topk_idx,
    )
    routing = route(logits, gate)
    if unmapped_topk_idx is not None:
        unmapped_topk_idx.copy_(routing.unmapped_topk_idx)
    return routing.topk_idx, routing.topk_weights
