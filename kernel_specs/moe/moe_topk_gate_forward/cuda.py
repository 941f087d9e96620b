"""``moe.moe_topk_gate_forward`` for CUDA: one warp a token, one lane a pick.

The keys of a token's experts go to shared memory, where the picks are made. A picked expert's score is
then computed once more from its logit, which is cheaper than keeping the scores of all. What a call leaves
out is an empty tensor: its entries are in range for no token.
"""

from dataclasses import dataclass
from typing import Any

import tilelang.language as T

from kernel_specs._cuda import has_pdl
from kernel_specs.moe._groups import cross_out_group, lane_bits, rank_of_group
from kernel_specs.moe._philox import philox, uniform
from kernel_specs.moe._routing import REPLICA_STRIDE
from kernel_specs.moe._scoring import score, softmax_sums
from kernel_specs.moe._selection import CROSSED_OUT, WARP, Chunks, first_lane, pick, rank_key
from kernel_specs.moe._weights import EPSILON, HALVES
from kernel_specs.moe.moe_topk_gate_forward._program import axes, flag, program, to_tp_rank
from tkc.model import Specialization, Target

PASS_CONFIGS: dict[str, object] = {
    # Warps share nothing; each orders its own accesses to shared memory with sync_warp.
    "tl.disable_thread_storage_sync": True,
    # Every index below is in range as written.
    "tl.disable_safe_memory_legalize": True,
}

_NOBODY = 2**31 - 1


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
    chunks = Chunks(specialization.int("max_experts"))
    scoring = specialization.str("scoring_func")
    warps, pdl = config.warps, has_pdl(target)
    size = axes()
    num_tokens, num_experts, num_slots = size["num_tokens"], size["num_experts"], size["num_slots"]
    num_mapped = size["num_mapped"]

    @T.macro
    def rank(logits, bias, image_bias, scores, token, is_image, keys, warp, lane, sums):
        """Put the keys of a token's experts where `pick` expects them, and write their scores."""
        row = T.alloc_local((chunks.size,), "float32")
        for i in T.unroll(chunks.size):
            row[i] = -T.infinity("float32")
            if i * WARP + lane < num_experts:
                row[i] = logits[token, i * WARP + lane]
        if scoring == "softmax":
            softmax_sums(row, chunks.size, sums)
        for i in T.unroll(chunks.size):
            expert = i * WARP + lane
            key = T.alloc_var("int32")
            key = CROSSED_OUT
            if expert < num_experts:
                value = T.alloc_var("float32")
                value = score(row[i], scoring, sums)
                if token < size["num_scored"] and expert < size["num_scores"]:
                    scores[token, expert] = value
                if scoring == "softmax":
                    value = row[i]
                if is_image != 0:
                    if expert < size["num_image_biases"]:
                        value += image_bias[expert]
                elif expert < size["num_biases"]:
                    value += bias[expert]
                key = rank_key(value)
            keys[warp, chunks.place(expert)] = key

    @T.macro
    def choose(keys, warp, lane, num_topk, num_groups, num_topk_groups):
        """Give lane j the j-th best expert, of the groups that compete."""
        T.sync_warp()
        if num_groups > 0:
            place = T.alloc_var("int32")
            place = rank_of_group(chunks, keys, warp, lane, num_experts, num_groups, 1)
            T.sync_warp()
            if place >= num_topk_groups and lane >> lane_bits(num_groups) < num_groups:
                cross_out_group(chunks, keys, warp, lane, num_experts, num_groups)
            T.sync_warp()
        return pick(chunks, keys, warp, lane, num_topk)

    @T.macro
    def weigh(logits, token, expert, num_topk, in_order, routed_scaling_factor, sums):
        """The normalised score of a lane's pick, 0 for a lane without one."""
        value, divisor = T.alloc_var("float32"), T.alloc_var("float32")
        value = 0
        if expert >= 0:
            value = score(logits[token, expert], scoring, sums)
        if in_order != 0:
            divisor = T.float32(EPSILON)
            for j in T.serial(num_topk):
                divisor += T.shfl_sync(value, j)
        else:
            divisor = value
            for half in HALVES:
                divisor += T.shfl_xor(divisor, half)
            divisor += T.float32(EPSILON)
        return value / divisor * routed_scaling_factor

    @T.macro
    def to_physical(to_physical_map, logical_count, token, expert, ep_rank):
        """A replica of a logical expert; -1 if it has none."""
        physical, count = T.alloc_var("int32"), T.alloc_var("int32")
        physical = expert
        if num_mapped > 0 and expert >= 0:
            physical = -1
            count = 0
            if expert < num_mapped:
                count = logical_count[expert]
            if count > 0:
                turn = T.cast(ep_rank, "int64") + T.cast(token, "int64") * T.int64(REPLICA_STRIDE)
                replica = T.alloc_var("int32")
                replica = T.cast(T.truncmod(turn, T.cast(count, "int64")), "int32")
                if replica < size["num_replicas"]:
                    physical = to_physical_map[expert, replica]
        return physical

    @T.macro
    def draw(logical_count, token, lane, num_shared, ep_rank, weights):
        """Give each slot's lane a random expert that no other has, and a random weight in ``weights[0]``."""
        population = T.alloc_var("int32")
        population = num_experts + num_shared
        if num_mapped > 0:
            population = 0
            for i in T.serial(T.ceildiv(num_mapped, WARP)):
                if i * WARP + lane < num_mapped:
                    population += T.max(logical_count[i * WARP + lane], 0)
            population = T.warp_reduce_sum(population)
        words = T.alloc_local((4,), "uint32")
        philox(T.cast(ep_rank, "uint32"), T.cast(token, "int64") * T.int64(WARP) + T.cast(lane, "int64"), words)
        candidate, pending, expert = T.alloc_var("int32"), T.alloc_var("int32"), T.alloc_var("int32")
        candidate = T.cast(T.truncmod(words[1], T.cast(T.max(population - lane, 1), "uint32")), "int32")
        pending = T.cast(lane < T.min(num_slots, population), "int32")
        expert = -1
        for _ in T.serial(num_slots):
            least, owner = T.alloc_var("int32"), T.alloc_var("int32")
            least = T.warp_reduce_min(T.if_then_else(pending != 0, candidate, _NOBODY))
            owner = first_lane(pending != 0 and candidate == least)
            if pending != 0 and lane > owner:
                candidate += 1
            if lane == owner:
                expert = least
                weights[0] = uniform(words[0])
                pending = 0
        return expert

    @T.macro
    def route(
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
    ):
        with T.Kernel(T.ceildiv(num_tokens, warps), threads=warps * WARP) as block:
            thread = T.get_thread_binding()
            warp, lane = thread // WARP, thread % WARP
            keys = T.alloc_shared((warps, chunks.words), "int32")
            token = T.alloc_var("int32")
            token = block * warps + warp
            if pdl:
                T.pdl_sync()
            if token < num_tokens:
                routed, random, fixed, is_image = (T.alloc_var("int32") for _ in range(4))
                routed = flag(mask, token, 1)
                random = flag(force_random, token, 0)
                fixed = flag(fix_routing_mask, token, 0)
                is_image = flag(image_token_mask, token, 0)
                expert, physical = T.alloc_var("int32"), T.alloc_var("int32")
                expert, physical = -1, -1
                weights = T.alloc_local((1,), "float32")
                weights[0] = 0
                if routed != 0 and random == 0:
                    sums = T.alloc_local((2,), "float32")
                    rank(logits, bias, image_bias, scores, token, is_image, keys, warp, lane, sums)
                    if fixed != 0:
                        expert = fixed_pick(unmapped_topk_idx, token, lane, num_topk, num_experts)
                    else:
                        expert = choose(keys, warp, lane, num_topk, num_groups, num_topk_groups)
                    if lane >= num_topk:
                        expert = -1
                    weights[0] = weigh(logits, token, expert, num_topk, in_order, routed_scaling_factor, sums)
                    physical = expert
                    if num_topk <= lane < num_slots:
                        physical = num_experts + lane - num_topk
                        weights[0] = 1
                    physical = to_physical(to_physical_map, logical_count, token, physical, ep_rank)
                    physical = to_tp_rank(physical, experts_per_rank, num_tp_ranks, tp_rank)
                else:
                    if token < size["num_scored"]:
                        for i in T.serial(T.ceildiv(size["num_scores"], WARP)):
                            if i * WARP + lane < size["num_scores"]:
                                scores[token, i * WARP + lane] = 0
                    if routed != 0:
                        physical = draw(logical_count, token, lane, num_slots - num_topk, ep_rank, weights)
                if lane < num_slots:
                    topk_idx[token, lane] = T.cast(physical, "int64")
                    topk_weights[token, lane] = weights[0]
                if token < size["num_unmapped"] and lane < T.min(num_topk, size["num_unmapped_topk"]):
                    unmapped_topk_idx[token, lane] = T.cast(expert, "int64")
            if pdl:
                T.pdl_trigger()

    return program(size, route)


@T.macro
def fixed_pick(unmapped_topk_idx: Any, token: Any, lane: Any, num_topk: Any, num_experts: Any) -> Any:
    """The expert that a caller fixed for a lane; -1 if it is none."""
    expert = T.alloc_var("int32")
    expert = -1
    if token < unmapped_topk_idx.shape[0] and lane < T.min(num_topk, unmapped_topk_idx.shape[1]):
        given = T.alloc_var("int64")
        given = unmapped_topk_idx[token, lane]
        if 0 <= given < T.cast(num_experts, "int64"):
            expert = T.cast(given, "int32")
    return expert
