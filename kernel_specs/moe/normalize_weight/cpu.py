"""``moe.normalize_weight`` for the CPU: plain loops."""

from typing import Any

import tilelang.cpu.language as T

from kernel_specs.moe._weights import EPSILON, HALVES
from tkc.model import Specialization, Target


def build(specialization: Specialization, target: Target) -> Any:
    """Give the program, which serves any number of weights up to 32."""
    num_tokens, num_topk = T.dynamic("num_tokens"), T.dynamic("num_topk")
    weights_stride = T.dynamic("weights_stride", "int64")

    @T.prim_func
    def normalize_weight(
        topk_weights: T.StridedTensor[(num_tokens, num_topk), (weights_stride, 1), "float32"],
        denominator: T.Tensor[(num_tokens,), "float32"],
        normalized_weights: T.Tensor[(num_tokens, num_topk), "float32"],
    ):
        with T.Kernel(num_tokens) as token:
            sums = T.alloc_local((2 * HALVES[0],), "float32")
            for j in T.serial(num_topk):
                sums[j] = topk_weights[token, j]
            for half in HALVES:
                for j in T.serial(T.min(half, T.max(num_topk - half, 0))):
                    sums[j] = sums[j] + sums[j + half]
            total = T.alloc_var("float32")
            total = T.float32(EPSILON) + sums[0]
            denominator[token] = total
            for j in T.serial(num_topk):
                normalized_weights[token, j] = topk_weights[token, j] / total

    return normalize_weight
