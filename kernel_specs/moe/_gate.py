"""The call that both gates share: checks, outputs, and the launch of ``moe.moe_topk_gate_forward``."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import Any, NamedTuple

import torch

from kernel_specs._absent import absent
from kernel_specs.config import get_pdl
from kernel_specs.moe._checks import check_finite, check_range, check_shape, check_together, checked_mode
from kernel_specs.moe._routing import BUCKET_OF, MAX_EXPERTS, MAX_TOPK, SCORING_FUNCS
from kernel_specs.moe.moe_topk_gate_forward.spec import SPEC
from tkc.errors import ArgumentError, unknown_name
from tkc.runtime import KernelTable

_KERNELS = KernelTable(SPEC)
_INT32_MAX = 2**31 - 1


class GateOptions(NamedTuple):
    """The tensors that a call may leave out, in the order of the launch; those of `moe_topk_gate_forward`."""

    bias: torch.Tensor | None = None
    image_bias: torch.Tensor | None = None
    image_token_mask: torch.Tensor | None = None
    mask: torch.Tensor | None = None
    fix_routing_mask: torch.Tensor | None = None
    force_random: torch.Tensor | None = None
    to_physical_map: torch.Tensor | None = None
    logical_count: torch.Tensor | None = None
    unmapped_topk_idx: torch.Tensor | None = None
    scores: torch.Tensor | None = None


def launch_gate(
    logits: torch.Tensor,
    num_topk: int,
    num_shared: int,
    scoring_func: str,
    ep_rank: int,
    routed_scaling_factor: float,
    options: GateOptions,
    *,
    out: tuple[torch.Tensor, torch.Tensor] | None = None,
    groups: tuple[int, int] = (0, 0),
    tp: tuple[int, int, int] = (0, 1, 0),
    in_order: bool = False,
) -> tuple[torch.Tensor, torch.Tensor]:
    """Check what the launch cannot, allocate, and route.

    Args:
        options: the tensors that a call may leave out.
        groups: how many there are, and how many compete; zeros if they do not.
        tp: experts of a rank (0: not split), tp ranks, and this rank among them.
        in_order: whether the weights are summed one after another.

    The others are those of `moe_topk_gate_forward`. Raises ArgumentError for what cannot be.
    """
    if logits.dim() != 2:
        raise ArgumentError(
            f"logits has shape {list(logits.shape)}; expected [num_tokens, num_experts]", argument="logits"
        )
    num_tokens, num_experts = logits.shape
    num_slots = num_topk + num_shared
    if scoring_func not in SCORING_FUNCS:
        raise ArgumentError(unknown_name("scoring_func", str(scoring_func), SCORING_FUNCS), argument="scoring_func")
    if not 0 < num_topk <= num_experts <= MAX_EXPERTS or num_slots > MAX_TOPK:
        raise _impossible(num_topk, num_experts, num_shared)
    if not 0 <= ep_rank <= _INT32_MAX:
        raise ArgumentError(f"ep_rank is {ep_rank}; expected 0 to {_INT32_MAX}", argument="ep_rank")
    device = logits.device
    passed = _absent(device)
    if [tensor for tensor in options if tensor is not None]:
        _check_given(options, num_tokens, num_experts, num_topk, num_shared)
        passed = [passed[i] if tensor is None else tensor for i, tensor in enumerate(options)]
    if checked_mode():
        _check_values(logits, options, num_slots)
    topk_idx, topk_weights = _outputs(logits, num_slots, out)
    if num_tokens:
        _KERNELS[device, get_pdl(), BUCKET_OF[num_experts], scoring_func](
            logits,
            *passed,
            topk_idx,
            topk_weights,
            num_topk,
            *groups,
            ep_rank,
            *tp,
            int(in_order),
            routed_scaling_factor,
        )
    return topk_idx, topk_weights


def num_shared_slots(use_shared_as_routed: bool, num_shared_experts: int) -> int:
    """Slots of shared experts. Raises ArgumentError unless they are at least one where they are asked for."""
    if not use_shared_as_routed:
        return 0
    if not 1 <= num_shared_experts < MAX_TOPK:
        raise ArgumentError(
            f"num_shared_experts is {num_shared_experts} and use_shared_as_routed is set; expected 1 to {MAX_TOPK - 1}",
            argument="num_shared_experts",
        )
    return num_shared_experts


@functools.cache
def _absent(device: torch.device) -> Sequence[Any]:
    """What stands for everything that a call may leave out, in the order of the launch."""
    arguments = {argument.name: argument for argument in SPEC.arguments(SPEC.bind(num_experts=1, num_topk=1))}
    return tuple(
        absent(device, getattr(torch, argument.dtype), len(argument.shape))
        for argument in map(arguments.__getitem__, GateOptions._fields)
    )


def _impossible(num_topk: int, num_experts: int, num_shared: int) -> ArgumentError:
    if not 1 <= num_experts <= MAX_EXPERTS:
        return ArgumentError(f"logits has {num_experts} experts; expected 1 to {MAX_EXPERTS}", argument="logits")
    most = min(num_experts, MAX_TOPK - num_shared)
    return ArgumentError(
        f"num_topk is {num_topk}; expected 1 to {most} (at most the {num_experts} experts there are, and "
        f"{MAX_TOPK} together with {num_shared} shared ones)",
        argument="num_topk",
    )


def _check_given(options: GateOptions, num_tokens: int, num_experts: int, num_topk: int, num_shared: int) -> None:
    """Shapes of the tensors that a call may leave out, and which of them need each other."""
    expert, token = (num_experts,), (num_tokens,)
    logical, pick, score = (num_experts + num_shared,), (num_tokens, num_topk), (num_tokens, num_experts)
    shapes = (expert, expert, token, token, token, token, None, logical, pick, score)
    for i, tensor in enumerate(options):
        if tensor is None:
            continue
        if (shape := shapes[i]) is None:
            _check_map(tensor, num_experts + num_shared)
        elif tensor.shape != shape:
            check_shape(options._fields[i], tensor, *shape)
    if (options.image_bias is None) is not (options.image_token_mask is None):
        check_together(image_bias=options.image_bias, image_token_mask=options.image_token_mask)
    if (options.to_physical_map is None) is not (options.logical_count is None):
        check_together(to_physical_map=options.to_physical_map, logical_count=options.logical_count)
    if options.fix_routing_mask is not None and options.unmapped_topk_idx is None:
        raise ArgumentError(
            "fix_routing_mask is given but unmapped_topk_idx, which holds the fixed picks, is None",
            argument="unmapped_topk_idx",
        )


def _check_map(to_physical_map: torch.Tensor, num_logical: int) -> None:
    if to_physical_map.dim() != 2 or to_physical_map.shape[0] != num_logical or to_physical_map.shape[1] == 0:
        raise ArgumentError(
            f"to_physical_map has shape {list(to_physical_map.shape)}; expected [{num_logical}, at least 1]: "
            "a row for each logical expert, shared ones too",
            argument="to_physical_map",
        )


def _check_values(logits: torch.Tensor, options: GateOptions, num_slots: int) -> None:
    """Checked mode: what only the device knows."""
    for name, values in {"logits": logits, "bias": options.bias, "image_bias": options.image_bias}.items():
        if values is not None:
            check_finite(name, values)
    counts, replicas, picks = options.logical_count, options.to_physical_map, options.unmapped_topk_idx
    if counts is not None and replicas is not None:
        check_range("logical_count", counts, 1, replicas.shape[1] + 1)
        if options.force_random is not None and (total := int(counts.sum())) < num_slots:
            raise ArgumentError(
                f"logical_count adds up to {total} physical experts; random routing needs {num_slots}",
                argument="logical_count",
            )
    if options.fix_routing_mask is not None and picks is not None:
        fixed = picks.where(options.fix_routing_mask[:, None], 0)
        check_range("unmapped_topk_idx", fixed, 0, logits.shape[1])


def _outputs(
    logits: torch.Tensor, num_slots: int, out: tuple[torch.Tensor, torch.Tensor] | None
) -> tuple[torch.Tensor, torch.Tensor]:
    num_tokens = logits.shape[0]
    if out is None:
        return logits.new_empty(num_tokens, num_slots, dtype=torch.int64), logits.new_empty(num_tokens, num_slots)
    for tensor in out:
        check_shape("out", tensor, num_tokens, num_slots)
    return out
