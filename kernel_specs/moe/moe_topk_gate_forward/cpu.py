"""``moe.moe_topk_gate_forward`` for the CPU: plain loops."""

from typing import Any

import tilelang.cpu.language as T

from kernel_specs.moe._groups import score_of
from kernel_specs.moe._philox import philox, uniform
from kernel_specs.moe._routing import MAX_GROUPS, MAX_TOPK, REPLICA_STRIDE
from kernel_specs.moe._scoring import score
from kernel_specs.moe._selection import CROSSED_OUT, WARP, rank_key
from kernel_specs.moe._weights import EPSILON, HALVES
from kernel_specs.moe.moe_topk_gate_forward._program import axes, flag, program, to_tp_rank
from tkc.model import Specialization, Target


def build(specialization: Specialization, target: Target) -> Any:
    """Give the program for up to ``max_experts`` experts and one scoring function."""
    max_experts, scoring = specialization.int("max_experts"), specialization.str("scoring_func")
    size = axes()
    num_tokens, num_experts, num_slots = size["num_tokens"], size["num_experts"], size["num_slots"]
    num_mapped = size["num_mapped"]

    @T.macro
    def rank(logits, bias, image_bias, scores, token, is_image, keys, sums):
        if scoring == "softmax":
            sums[0] = -T.infinity("float32")
            for expert in T.serial(num_experts):
                sums[0] = T.max(sums[0], logits[token, expert])
            sums[1] = 0
            for expert in T.serial(num_experts):
                sums[1] += T.exp(logits[token, expert] - sums[0])
        for expert in T.serial(num_experts):
            value = T.alloc_var("float32")
            value = score(logits[token, expert], scoring, sums)
            if token < size["num_scored"] and expert < size["num_scores"]:
                scores[token, expert] = value
            if scoring == "softmax":
                value = logits[token, expert]
            if is_image != 0:
                if expert < size["num_image_biases"]:
                    value += image_bias[expert]
            elif expert < size["num_biases"]:
                value += bias[expert]
            values = T.alloc_local((1,), "float32")
            values[0] = value
            keys[expert] = rank_key(values[0])

    @T.macro
    def keep_best_groups(keys, num_groups, num_topk_groups):
        group_size = T.alloc_var("int32")
        group_size = T.truncdiv(num_experts, num_groups)
        sums = T.alloc_local((MAX_GROUPS,), "float32")
        for group in T.serial(num_groups):
            best, second, value = (T.alloc_var("float32") for _ in range(3))
            best, second = -T.infinity("float32"), -T.infinity("float32")
            for i in T.serial(group_size):
                value = score_of(keys[group * group_size + i])
                second = T.max(second, T.min(best, value))
                best = T.max(best, value)
            sums[group] = best + second
        for group in T.serial(num_groups):
            beaten = T.alloc_var("int32")
            beaten = 0
            for other in T.serial(num_groups):
                mine, theirs = T.alloc_var("int32"), T.alloc_var("int32")
                mine, theirs = rank_key(sums[group]), rank_key(sums[other])
                if theirs > mine or (theirs == mine and other < group):
                    beaten += 1
            if beaten >= num_topk_groups:
                for i in T.serial(group_size):
                    keys[group * group_size + i] = CROSSED_OUT

    @T.macro
    def choose(keys, experts, num_topk):
        for j in T.serial(num_topk):
            best = T.alloc_var("int32")
            best = 0
            for expert in T.serial(num_experts):
                if keys[expert] > keys[best]:
                    best = expert
            experts[j] = best
            keys[best] = CROSSED_OUT

    @T.macro
    def weigh(logits, token, experts, weights, num_topk, in_order, routed_scaling_factor, sums):
        lanes = T.alloc_local((2 * HALVES[0],), "float32")
        for j in T.serial(2 * HALVES[0]):
            lanes[j] = 0
        for j in T.serial(num_topk):
            if experts[j] >= 0:
                lanes[j] = score(logits[token, experts[j]], scoring, sums)
            weights[j] = lanes[j]
        total = T.alloc_var("float32")
        total = T.float32(EPSILON)
        if in_order != 0:
            for j in T.serial(num_topk):
                total += lanes[j]
        else:
            for half in HALVES:
                for j in T.serial(half):
                    lanes[j] = lanes[j] + lanes[j + half]
            total = lanes[0] + T.float32(EPSILON)
        for j in T.serial(num_topk):
            weights[j] = weights[j] / total * routed_scaling_factor

    @T.macro
    def to_physical(to_physical_map, logical_count, token, expert, ep_rank):
        physical, count = T.alloc_var("int32"), T.alloc_var("int32")
        physical = expert
        if num_mapped > 0 and expert >= 0:
            physical = -1
            count = 0
            if expert < num_mapped:
                count = logical_count[expert]
            if count > 0:
                replica = T.alloc_var("int64")
                replica = T.cast(ep_rank, "int64") + T.cast(token, "int64") * T.int64(REPLICA_STRIDE)
                replica = T.truncmod(replica, T.cast(count, "int64"))
                if replica < T.cast(size["num_replicas"], "int64"):
                    physical = to_physical_map[expert, T.cast(replica, "int32")]
        return physical

    @T.macro
    def draw(logical_count, token, slots, weights, num_shared, ep_rank):
        population = T.alloc_var("int32")
        population = num_experts + num_shared
        if num_mapped > 0:
            population = 0
            for i in T.serial(num_mapped):
                population += T.max(logical_count[i], 0)
        words = T.alloc_local((4,), "uint32")
        candidates, pending = T.alloc_local((MAX_TOPK,), "int32"), T.alloc_local((MAX_TOPK,), "int32")
        for j in T.serial(num_slots):
            philox(T.cast(ep_rank, "uint32"), T.cast(token, "int64") * T.int64(WARP) + T.cast(j, "int64"), words)
            candidates[j] = T.cast(T.truncmod(words[1], T.cast(T.max(population - j, 1), "uint32")), "int32")
            pending[j] = T.cast(j < population, "int32")
            weights[j] = T.if_then_else(j < population, uniform(words[0]), T.float32(0))
        for _ in T.serial(T.min(num_slots, population)):
            owner, least = T.alloc_var("int32"), T.alloc_var("int32")
            owner, least = 0, T.max_value("int32")
            for j in T.serial(num_slots):
                if pending[j] != 0 and candidates[j] < least:
                    owner = j
                    least = candidates[j]
            slots[owner] = least
            pending[owner] = 0
            for j in T.serial(num_slots):
                if j > owner and pending[j] != 0:
                    candidates[j] = candidates[j] + 1

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
        with T.Kernel(num_tokens) as token:
            keys = T.alloc_local((max_experts,), "int32")
            experts, slots = T.alloc_local((MAX_TOPK,), "int32"), T.alloc_local((MAX_TOPK,), "int32")
            weights, sums = T.alloc_local((MAX_TOPK,), "float32"), T.alloc_local((2,), "float32")
            for j in T.serial(MAX_TOPK):
                experts[j] = -1
                slots[j] = -1
                weights[j] = 0
            routed, random = T.alloc_var("int32"), T.alloc_var("int32")
            routed, random = flag(mask, token, 1), flag(force_random, token, 0)
            if routed != 0 and random == 0:
                is_image = T.alloc_var("int32")
                is_image = flag(image_token_mask, token, 0)
                rank(logits, bias, image_bias, scores, token, is_image, keys, sums)
                if flag(fix_routing_mask, token, 0) != 0:
                    for j in T.serial(num_topk):
                        if token < size["num_unmapped"] and j < size["num_unmapped_topk"]:
                            given = T.alloc_var("int64")
                            given = unmapped_topk_idx[token, j]
                            if given >= T.int64(0) and given < T.cast(num_experts, "int64"):
                                experts[j] = T.cast(given, "int32")
                else:
                    if num_groups > 0:
                        keep_best_groups(keys, num_groups, num_topk_groups)
                    choose(keys, experts, num_topk)
                weigh(logits, token, experts, weights, num_topk, in_order, routed_scaling_factor, sums)
                for j in T.serial(num_slots):
                    expert = T.alloc_var("int32")
                    expert = experts[j]
                    if j >= num_topk:
                        expert = num_experts + j - num_topk
                        weights[j] = 1
                    expert = to_physical(to_physical_map, logical_count, token, expert, ep_rank)
                    slots[j] = to_tp_rank(expert, experts_per_rank, num_tp_ranks, tp_rank)
            else:
                if token < size["num_scored"]:
                    for expert in T.serial(size["num_scores"]):
                        scores[token, expert] = 0
                if routed != 0:
                    draw(logical_count, token, slots, weights, num_slots - num_topk, ep_rank)
            for j in T.serial(num_slots):
                topk_idx[token, j] = T.cast(slots[j], "int64")
                topk_weights[token, j] = weights[j]
            if token < size["num_unmapped"]:
                for j in T.serial(T.min(num_topk, size["num_unmapped_topk"])):
                    unmapped_topk_idx[token, j] = T.cast(experts[j], "int64")

    return program(size, route)
