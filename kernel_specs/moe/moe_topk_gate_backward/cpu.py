"""``moe.moe_topk_gate_backward`` for the CPU: plain loops."""

from typing import Any

import tilelang.cpu.language as T

from kernel_specs.moe._derivative import SERIES
from kernel_specs.moe._weights import EPSILON
from tkc.model import Specialization, Target


def build(specialization: Specialization, target: Target) -> Any:
    """Give the program for up to ``max_experts`` experts and one scoring function."""
    room, scoring = specialization.int("max_experts"), specialization.str("scoring_func")
    num_tokens, num_experts, num_topk = T.dynamic("num_tokens"), T.dynamic("num_experts"), T.dynamic("num_topk")
    num_masked, num_sums, num_summed = T.dynamic("num_masked"), T.dynamic("num_sums"), T.dynamic("num_summed")
    scores_stride = T.dynamic("scores_stride", "int64")

    @T.prim_func
    def moe_topk_gate_backward(
        scores: T.StridedTensor[(num_tokens, num_experts), (scores_stride, 1), "float32"],
        topk_idx: T.Tensor[(num_tokens, num_topk), "int64"],
        topk_weights: T.Tensor[(num_tokens, num_topk), "float32"],
        grad_topk_weights: T.Tensor[(num_tokens, num_topk), "float32"],
        mask: T.Tensor[(num_masked,), "bool"],
        grad_scores_sum: T.Tensor[(num_sums, num_summed), "float32"],
        grad_logits: T.Tensor[(num_tokens, num_experts), "float32"],
        tokens_per_sum: T.int32,
        routed_scaling_factor: T.float32,
    ):
        with T.Kernel(num_tokens) as token:
            routes = T.alloc_local((room,), "float32")
            for e in T.serial(num_experts):
                routes[e] = 0
            divisor, mean_grad = T.alloc_var("float32"), T.alloc_var("float32")
            divisor, mean_grad = 0, 0
            for j in T.serial(num_topk):
                if topk_idx[token, j] >= T.int64(0) and topk_idx[token, j] < T.cast(num_experts, "int64"):
                    divisor += scores[token, T.cast(topk_idx[token, j], "int32")]
                    mean_grad += grad_topk_weights[token, j] * topk_weights[token, j]
            divisor += T.float32(EPSILON)
            for j in T.serial(num_topk):
                if topk_idx[token, j] >= T.int64(0) and topk_idx[token, j] < T.cast(num_experts, "int64"):
                    e = T.alloc_var("int32")
                    e = T.cast(topk_idx[token, j], "int32")
                    routes[e] = routes[e] + (routed_scaling_factor * grad_topk_weights[token, j] - mean_grad) / divisor
            run = T.alloc_var("int32")
            run = num_sums
            if token < num_masked and mask[token]:
                run = T.truncdiv(token, tokens_per_sum)
            if run < num_sums:
                total, mean = T.alloc_var("float32"), T.alloc_var("float32")
                total, mean = 0, 0
                for e in T.serial(num_experts):
                    total += scores[token, e]
                    if e < num_summed:
                        mean += grad_scores_sum[run, e] * scores[token, e]
                for e in T.serial(T.min(num_experts, num_summed)):
                    routes[e] = routes[e] + (grad_scores_sum[run, e] - mean / total) / total
            for e in T.serial(num_experts):
                score, slope = T.alloc_var("float32"), T.alloc_var("float32")
                score = scores[token, e]
                if scoring == "sigmoid":
                    slope = score * (T.float32(1) - score)
                elif score * score < T.float32(1):
                    slope = T.float32(SERIES[0])
                    for coefficient in SERIES[1:]:
                        slope = slope * (score * score) + T.float32(coefficient)
                    slope = (score * score * slope + T.float32(1)) * (score * T.float32(0.5))
                else:
                    slope = T.float32(0.5) * (T.float32(1) - T.exp(-(score * score))) / score
                grad_logits[token, e] = slope * routes[e]

    return moe_topk_gate_backward
