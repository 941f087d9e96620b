"""The signature of the gate's programs, which is the same in every dialect, and what they all do alike.

What a call leaves out is an empty tensor: its entries are in range for no token.
"""

from collections.abc import Mapping
from typing import Any

import tilelang.language.common as T


def axes() -> dict[str, Any]:
    """Sizes and strides that are free at launch, by name."""
    names = "num_tokens num_experts num_slots num_biases num_image_biases num_image_flags num_masked num_fixed "
    names += "num_random num_mapped num_replicas num_unmapped num_unmapped_topk num_scored num_scores"
    strides = {name: T.dynamic(name, "int64") for name in ("logits_stride", "unmapped_stride")}
    return {name: T.dynamic(name) for name in names.split()} | strides


def program(size: Mapping[str, Any], body: Any) -> Any:
    """A program with the arguments of the spec, around a macro that takes them in the same order."""
    num_tokens, num_experts, num_slots = size["num_tokens"], size["num_experts"], size["num_slots"]
    num_mapped, unmapped_shape = size["num_mapped"], (size["num_unmapped"], size["num_unmapped_topk"])
    logits_stride, unmapped_stride = size["logits_stride"], size["unmapped_stride"]

    @T.prim_func
    def moe_topk_gate_forward(
        logits: T.StridedTensor[(num_tokens, num_experts), (logits_stride, 1), "float32"],
        bias: T.Tensor[(size["num_biases"],), "float32"],
        image_bias: T.Tensor[(size["num_image_biases"],), "float32"],
        image_token_mask: T.Tensor[(size["num_image_flags"],), "bool"],
        mask: T.Tensor[(size["num_masked"],), "bool"],
        fix_routing_mask: T.Tensor[(size["num_fixed"],), "bool"],
        force_random: T.Tensor[(size["num_random"],), "bool"],
        to_physical_map: T.Tensor[(num_mapped, size["num_replicas"]), "int32"],
        logical_count: T.Tensor[(num_mapped,), "int32"],
        unmapped_topk_idx: T.StridedTensor[unmapped_shape, (unmapped_stride, 1), "int64"],
        scores: T.Tensor[(size["num_scored"], size["num_scores"]), "float32"],
        topk_idx: T.Tensor[(num_tokens, num_slots), "int64"],
        topk_weights: T.Tensor[(num_tokens, num_slots), "float32"],
        num_topk: T.int32,
        num_groups: T.int32,
        num_topk_groups: T.int32,
        ep_rank: T.int32,
        experts_per_rank: T.int32,
        num_tp_ranks: T.int32,
        tp_rank: T.int32,
        in_order: T.int32,
        routed_scaling_factor: T.float32,
    ):
        body(
            logits,
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
            topk_idx,
            topk_weights,
            num_topk,
            num_groups,
            num_topk_groups,
            ep_rank,
            experts_per_rank,
            num_tp_ranks,
            tp_rank,
            in_order,
            routed_scaling_factor,
        )

    return moe_topk_gate_forward


@T.macro
def flag(flags: Any, token: Any, absent: int) -> Any:
    """A token's flag as 0 or 1, `absent` if there are none."""
    value = T.alloc_var("int32")
    value = absent
    if token < flags.shape[0]:
        value = T.cast(flags[token], "int32")
    return value


@T.macro
def to_tp_rank(expert: Any, experts_per_rank: Any, num_tp_ranks: Any, tp_rank: Any) -> Any:
    """The index of an expert among those that ranks with this `tp_rank` hold; -1 if they do not hold it."""
    index = T.alloc_var("int32")
    index = expert
    if experts_per_rank > 0 and expert >= 0:
        index = -1
        if T.truncmod(T.truncdiv(expert, experts_per_rank), num_tp_ranks) == tp_rank:
            index = expert - tp_rank * experts_per_rank
            index -= T.truncdiv(index, experts_per_rank * num_tp_ranks) * (experts_per_rank * (num_tp_ranks - 1))
    return index
