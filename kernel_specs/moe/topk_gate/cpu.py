"""``moe.topk_gate`` for the CPU: plain loops."""

from typing import Any

import tilelang.cpu.language as T

from kernel_specs.moe._selection import CROSSED_OUT, rank_key
from tkc.model import Specialization, Target


def build(specialization: Specialization, target: Target) -> Any:
    """Give the program for up to ``max_experts`` experts."""
    max_experts = specialization.int("max_experts")
    num_tokens, num_experts = T.dynamic("num_tokens"), T.dynamic("num_experts")
    num_topk, scores_stride = T.dynamic("num_topk"), T.dynamic("scores_stride", "int64")

    @T.prim_func
    def topk_gate(
        scores: T.StridedTensor[(num_tokens, num_experts), (scores_stride, 1), "float32"],
        topk_idx: T.Tensor[(num_tokens, num_topk), "int64"],
    ):
        with T.Kernel(num_tokens) as token:
            keys = T.alloc_local((max_experts,), "int32")
            for expert in T.serial(num_experts):
                keys[expert] = rank_key(scores[token, expert])
            for j in T.serial(num_topk):
                best = T.alloc_var("int32")
                best = 0
                for expert in T.serial(num_experts):
                    if keys[expert] > keys[best]:
                        best = expert
                topk_idx[token, j] = T.cast(best, "int64")
                keys[best] = CROSSED_OUT

    return topk_gate
