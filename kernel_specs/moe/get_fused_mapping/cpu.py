"""``moe.get_fused_mapping`` for the CPU: plain loops."""

from typing import Any

import tilelang.cpu.language as T

from kernel_specs.moe._routing import MAX_EXPERTS
from tkc.model import Specialization, Target


def build(specialization: Specialization, target: Target) -> Any:
    """Give the program for up to 1024 experts."""
    num_tokens, num_topk, num_experts = T.dynamic("num_tokens"), T.dynamic("num_topk"), T.dynamic("num_experts")
    num_positions, num_slice_counts = T.dynamic("num_positions"), T.dynamic("num_slice_counts")

    @T.prim_func
    def get_fused_mapping(
        topk_idx: T.Tensor[(num_tokens, num_topk), "int64"],
        slice_counts: T.Tensor[(num_slice_counts,), "int32"],
        pos_to_expert: T.Tensor[(num_positions,), "int32"],
        pos_to_token: T.Tensor[(num_positions,), "int32"],
        pos_to_token_topk: T.Tensor[(num_positions,), "int32"],
        token_topk_to_pos: T.Tensor[(num_tokens, num_topk), "int32"],
        expert_start: T.Tensor[(num_experts,), "int32"],
        expert_end: T.Tensor[(num_experts,), "int32"],
        num_tokens_per_expert: T.Tensor[(num_experts,), "int32"],
        alignment: T.int32,
    ):
        with T.Kernel(1) as _:
            cursors = T.alloc_local((MAX_EXPERTS,), "int32")
            num_columns, num_slices, size, cursor = (T.alloc_var("int32") for _ in range(4))
            num_columns = T.ceildiv(num_experts, 4) * 4
            num_slices = T.max(1, T.truncdiv(num_slice_counts, num_columns))
            size, cursor = T.truncdiv(num_tokens * num_topk + num_slices - 1, num_slices), 0
            for i in T.serial(num_slice_counts):
                slice_counts[i] = 0
            for e in T.serial(num_experts):
                cursors[e] = 0
            for token in T.serial(num_tokens):
                for k in T.serial(num_topk):
                    if topk_idx[token, k] >= T.int64(0) and topk_idx[token, k] < T.cast(num_experts, "int64"):
                        place, e = T.alloc_var("int32"), T.alloc_var("int32")
                        e = T.cast(topk_idx[token, k], "int32")
                        cursors[e] = cursors[e] + 1
                        if num_slice_counts > 0:
                            place = T.truncdiv(token * num_topk + k, size) * num_columns + e
                            slice_counts[place] = slice_counts[place] + 1
            for e in T.serial(num_experts):
                total = T.alloc_var("int32")
                total = T.truncdiv(cursors[e] + alignment - 1, alignment) * alignment
                cursors[e] = cursor
                expert_start[e] = cursor
                cursor += total
                expert_end[e] = cursor
                num_tokens_per_expert[e] = total
            for i in T.serial(num_positions):
                pos_to_expert[i] = -1
                pos_to_token[i] = -1
                pos_to_token_topk[i] = -1
            for token in T.serial(num_tokens):
                for k in T.serial(num_topk):
                    token_topk_to_pos[token, k] = -1
                    if topk_idx[token, k] >= T.int64(0) and topk_idx[token, k] < T.cast(num_experts, "int64"):
                        e, position = T.alloc_var("int32"), T.alloc_var("int32")
                        e = T.cast(topk_idx[token, k], "int32")
                        position = cursors[e]
                        cursors[e] = position + 1
                        if position < num_positions:
                            token_topk_to_pos[token, k] = position
                            pos_to_expert[position] = e
                            pos_to_token[position] = token
                            pos_to_token_topk[position] = token * num_topk + k

    return get_fused_mapping
