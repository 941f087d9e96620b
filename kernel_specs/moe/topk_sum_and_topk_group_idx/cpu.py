"""``moe.topk_sum_and_topk_group_idx`` for the CPU: plain loops."""

from typing import Any

import tilelang.cpu.language as T

from kernel_specs.moe._routing import MAX_GROUPS
from kernel_specs.moe._selection import rank_key
from tkc.model import Specialization, Target


def build(specialization: Specialization, target: Target) -> Any:
    """Give the program."""
    num_tokens, num_groups, group_size = T.dynamic("num_tokens"), T.dynamic("num_groups"), T.dynamic("group_size")
    num_topk_groups = T.dynamic("num_topk_groups")

    @T.prim_func
    def topk_sum_and_topk_group_idx(
        scores: T.Tensor[(num_tokens, num_groups, group_size), "float32"],
        group_idx: T.Tensor[(num_tokens, num_topk_groups), "int64"],
        num_topk_sum: T.int32,
    ):
        with T.Kernel(num_tokens) as token:
            values = T.alloc_local((MAX_GROUPS,), "float32")
            for group in T.serial(num_groups):
                best, second = T.alloc_var("float32"), T.alloc_var("float32")
                best, second = -T.infinity("float32"), -T.infinity("float32")
                for i in T.serial(group_size):
                    value = T.alloc_var("float32")
                    value = scores[token, group, i]
                    if value > best:
                        second = best
                        best = value
                    elif value > second:
                        second = value
                values[group] = best
                if num_topk_sum == 2:
                    values[group] = best + second
            for group in T.serial(num_groups):
                rank = T.alloc_var("int32")
                rank = 0
                for other in T.serial(num_groups):
                    mine, theirs = T.alloc_var("int32"), T.alloc_var("int32")
                    mine, theirs = rank_key(values[group]), rank_key(values[other])
                    if theirs > mine or (theirs == mine and other < group):
                        rank += 1
                if rank < num_topk_groups:
                    group_idx[token, rank] = T.cast(group, "int64")

    return topk_sum_and_topk_group_idx
