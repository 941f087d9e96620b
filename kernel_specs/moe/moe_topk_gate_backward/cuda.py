"""``moe.moe_topk_gate_backward`` for CUDA: one warp a token.

Picks of the same expert are added in the order of the picks, by the first lane that has it, so that the same
inputs always give the same bits; where all picks differ, which is the rule, that costs one comparison.
"""

from dataclasses import dataclass
from typing import Any

import tilelang.language as T

from kernel_specs._cuda import has_pdl
from kernel_specs.moe._derivative import score_derivative
from kernel_specs.moe._selection import WARP
from kernel_specs.moe._weights import EPSILON
from tkc.model import Specialization, Target

PASS_CONFIGS: dict[str, object] = {
    # Warps share nothing; each orders its own accesses to shared memory with sync_warp.
    "tl.disable_thread_storage_sync": True,
    # Every index below is in range as written.
    "tl.disable_safe_memory_legalize": True,
}


@dataclass(frozen=True)
class Config:
    """Tuning choices.

    Attributes:
        warps: of a block, each with a token of its own.
    """

    warps: int = 4


DEFAULT = Config()


def build(specialization: Specialization, target: Target, config: Config = DEFAULT) -> Any:
    """Give the program for up to ``max_experts`` experts and one scoring function."""
    room, scoring = specialization.int("max_experts"), specialization.str("scoring_func")
    warps, per_lane, pdl = config.warps, room // WARP, has_pdl(target)
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
        with T.Kernel(T.ceildiv(num_tokens, warps), threads=warps * WARP) as block:
            thread = T.get_thread_binding()
            warp, lane = thread // WARP, thread % WARP
            routes = T.alloc_shared((warps, room), "float32")
            token = T.alloc_var("int32")
            token = block * warps + warp
            if pdl:
                T.pdl_sync()
            if token < num_tokens:
                row = T.alloc_local((per_lane,), "float32")
                for i in T.unroll(per_lane):
                    row[i] = 0
                    if i * WARP + lane < num_experts:
                        row[i] = scores[token, i * WARP + lane]
                    routes[warp, i * WARP + lane] = 0
                expert = T.alloc_var("int32")
                picked, weight, grad = (T.alloc_var("float32") for _ in range(3))
                # Lanes without a pick have experts of their own, which nothing else is equal to.
                expert, picked, weight, grad = -1 - lane, 0, 0, 0
                if lane < num_topk:
                    given = T.alloc_var("int64")
                    given = topk_idx[token, lane]
                    if given >= T.int64(0) and given < T.cast(num_experts, "int64"):
                        expert = T.cast(given, "int32")
                        picked = scores[token, expert]
                        weight = topk_weights[token, lane]
                        grad = grad_topk_weights[token, lane]
                route = T.alloc_var("float32")
                route = routed_scaling_factor * grad - T.warp_reduce_sum(grad * weight)
                route = route / (T.warp_reduce_sum(picked) + T.float32(EPSILON))
                T.sync_warp()
                add_route(routes, warp, lane, expert, route, num_topk)
                T.sync_warp()
                inverse, mean = T.alloc_var("float32"), T.alloc_var("float32")
                inverse, mean = 0, 0
                run = T.alloc_var("int32")
                run = num_sums
                if token < num_masked and mask[token]:
                    run = T.truncdiv(token, tokens_per_sum)
                if run < num_sums:
                    total = T.alloc_var("float32")
                    total = 0
                    for i in T.unroll(per_lane):
                        total += row[i]
                        if i * WARP + lane < num_summed:
                            mean += grad_scores_sum[run, i * WARP + lane] * row[i]
                    inverse = T.float32(1) / T.warp_reduce_sum(total)
                    mean = T.warp_reduce_sum(mean) * inverse
                for i in T.unroll(per_lane):
                    if i * WARP + lane < num_experts:
                        slope = T.alloc_var("float32")
                        slope = routes[warp, i * WARP + lane]
                        if run < num_sums and i * WARP + lane < num_summed:
                            slope += (grad_scores_sum[run, i * WARP + lane] - mean) * inverse
                        grad_logits[token, i * WARP + lane] = score_derivative(row[i], scoring) * slope
            if pdl:
                T.pdl_trigger()

    return moe_topk_gate_backward


@T.macro
def add_route(routes: Any, warp: Any, lane: Any, expert: Any, route: Any, num_topk: Any) -> None:
    """Put each lane's route where its expert's is kept; those of one expert are added in the order of lanes."""
    first = T.alloc_var("int32")
    first = T.__ffs(T.cast(T.match_any_sync(expert), "int32")) - 1
    total = T.alloc_var("float32")
    total = route
    if T.any_sync(first != lane) != 0:
        total = 0
        for j in T.serial(num_topk):
            other, other_route = T.alloc_var("int32"), T.alloc_var("float32")
            other, other_route = T.shfl_sync(expert, j), T.shfl_sync(route, j)
            if other == expert:
                total += other_route
    if expert >= 0 and first == lane:
        routes[warp, expert] = total
