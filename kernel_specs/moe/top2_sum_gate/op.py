"""``top2_sum_gate``."""

from __future__ import annotations

import torch

from kernel_specs.moe._gate import GateOptions, launch_gate, num_shared_slots
from kernel_specs.moe._routing import MAX_GROUPS
from tkc.errors import ArgumentError

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
    """Route each token to its best experts, of its best groups of experts, as seen by one tp rank.

    Args:
        logits, num_topk, use_shared_as_routed, num_shared_experts, routed_scaling_factor, ep_rank, scoring_func,
            mask, fix_routing_mask, to_physical_map, logical_count, unmapped_topk_idx: as in `moe_topk_gate_forward`.
        bias: ``[E]``, float32.
        num_groups, num_topk_groups: groups of consecutive experts, at most 32, E a multiple of them, and how
            many compete: those with the largest sum of two best keys, the smaller index first among equals.
            Both 0: no groups.
        num_ep_ranks: over how many ranks the physical experts are spread: E of them, and D - 1 more with a map.
        tp_rank, num_tp_ranks: this rank, and how many hold the same tokens. Experts of ranks with another
            ``tp_rank`` become -1, the others are numbered without them.

    Returns:
        Indices and weights as `moe_topk_gate_forward` gives them, except that the sum of the scores is formed
        one after another, from 1e-20 on.

    Raises ArgumentError, before anything is launched, for arguments that do not fit.
    """
    if logits.dim() != 2:
        raise ArgumentError(
            f"logits has shape {list(logits.shape)}; expected [num_tokens, num_experts]", argument="logits"
        )
    num_experts = logits.shape[1]
    _check_groups(num_experts, num_groups, num_topk_groups, num_topk)
    num_physical = num_experts + (0 if to_physical_map is None else to_physical_map.shape[-1] - 1)
    return launch_gate(
        logits,
        num_topk,
        num_shared_slots(use_shared_as_routed, num_shared_experts),
        scoring_func,
        ep_rank,
        routed_scaling_factor,
        GateOptions(
            bias=bias,
            mask=mask,
            fix_routing_mask=fix_routing_mask,
            to_physical_map=to_physical_map,
            logical_count=logical_count,
            unmapped_topk_idx=unmapped_topk_idx,
        ),
        groups=(num_groups, num_topk_groups) if num_groups != num_topk_groups else (0, 0),
        tp=_tensor_parallel(num_physical, num_ep_ranks, tp_rank, num_tp_ranks),
        in_order=True,
    )


def _check_groups(num_experts: int, num_groups: int, num_topk_groups: int, num_topk: int) -> None:
    if num_groups == num_topk_groups == 0:
        return
    if not 1 <= num_groups <= MAX_GROUPS or num_experts % num_groups:
        raise ArgumentError(
            f"num_groups is {num_groups}; expected 1 to {MAX_GROUPS}, of which {num_experts} experts is a multiple, "
            "or 0 together with num_topk_groups",
            argument="num_groups",
        )
    if not 1 <= num_topk_groups <= num_groups:
        raise ArgumentError(
            f"num_topk_groups is {num_topk_groups}; expected 1 to {num_groups}", argument="num_topk_groups"
        )
    if num_topk_groups * (num_experts // num_groups) < num_topk:
        raise ArgumentError(
            f"num_topk is {num_topk}; {num_topk_groups} groups of {num_experts // num_groups} experts have fewer",
            argument="num_topk",
        )


def _tensor_parallel(num_physical: int, num_ep_ranks: int, tp_rank: int, num_tp_ranks: int) -> tuple[int, int, int]:
    """Experts of a rank, tp ranks and this one; zero experts if they are not split."""
    if num_tp_ranks < 1 or not 0 <= tp_rank < num_tp_ranks:
        raise ArgumentError(
            f"tp_rank is {tp_rank} of {num_tp_ranks}; expected 0 to num_tp_ranks - 1", argument="tp_rank"
        )
    if num_tp_ranks == 1:
        return 0, 1, 0
    if not 1 <= num_ep_ranks <= num_physical:
        raise ArgumentError(
            f"num_ep_ranks is {num_ep_ranks}; expected 1 to {num_physical}, the physical experts there are",
            argument="num_ep_ranks",
        )
    return num_physical // num_ep_ranks, num_tp_ranks, tp_rank
