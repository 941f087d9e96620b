"""``moe.moe_topk_gate_backward`` for CUDA: a warp writes whole rows, then each pick's lane its own value over them.

Few experts of a token are picked. Rows are written first as they are where nothing is picked: 0, or what the balance
loss gives. So no route waits in shared memory for the rest of its row, and the derivative is evaluated for picks alone.
Scores that nothing picks are loaded all the same: where one is NaN, so is its gradient, and faults upstream stay seen.

A lane has a pick. With the balance loss, which adds up scores over a row, a warp takes one token; without it as many
as its lanes have room for the picks of: four tokens of 8 picks. The picks are asked for before the rows are written,
their scores after: memory answers to the first while the warp is at work on the second.

Picks of the same expert are added in the order of the picks, by the first lane that has it, so that the same
inputs always give the same bits; where all picks differ, which is the rule, that costs one comparison.
"""

from dataclasses import dataclass
from typing import Any

import tilelang.language as T

from kernel_specs._cuda import has_pdl
from kernel_specs.moe._derivative import score_derivative
from kernel_specs.moe._routing import MAX_EXPERTS
from kernel_specs.moe._selection import WARP
from kernel_specs.moe._weights import EPSILON
from tkc.model import Specialization, Target

PASS_CONFIGS: dict[str, object] = {
    # Warps share nothing; each orders its own accesses to memory with sync_warp.
    "tl.disable_thread_storage_sync": True,
    # Every index below is in range as written.
    "tl.disable_safe_memory_legalize": True,
}

_MOST_TOKENS = 4
"""Tokens of a warp at most."""
_VECTOR = 4
"""Scores that a lane loads at once from aligned rows."""
_HELD = 8
"""Vectors that a lane loads before it writes the first."""


@dataclass(frozen=True)
class Config:
    """Tuning choices.

    Attributes:
        warps: of a block, each with tokens of its own.
    """

    warps: int = 8


DEFAULT = Config()


def build(specialization: Specialization, target: Target, config: Config = DEFAULT) -> Any:
    """Give the program for up to ``max_experts`` experts and one scoring function."""
    room, scoring = specialization.int("max_experts"), specialization.str("scoring_func")
    warps, pdl = config.warps, has_pdl(target)
    num_tokens, num_experts, num_topk = T.dynamic("num_tokens"), T.dynamic("num_experts"), T.dynamic("num_topk")
    num_masked, num_sums, num_summed = T.dynamic("num_masked"), T.dynamic("num_sums"), T.dynamic("num_summed")
    scores_stride = T.dynamic("scores_stride", "int64")
    # Lanes of a token, as a power of 2.
    lane_bits = T.if_then_else(T.Or(num_sums > 0, num_topk > 16), 5, T.if_then_else(num_topk > 8, 4, 3))

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
        with T.Kernel(T.ceildiv(num_tokens, warps * (WARP >> lane_bits)), threads=warps * WARP) as block:
            warp, lane = T.get_thread_binding() // WARP, T.get_thread_binding() % WARP
            bits, first, token, pick = (T.alloc_var("int32") for _ in range(4))
            bits = lane_bits
            first = (block * warps + warp) << (5 - bits)
            token = first + (lane >> bits)
            pick = lane & ((1 << bits) - 1)
            if pdl:
                T.pdl_sync()
            if first < num_tokens:
                given = T.alloc_var("int64")
                weight, grad = T.alloc_var("float32"), T.alloc_var("float32")
                given, weight, grad = T.int64(-1), 0, 0
                if token < num_tokens and pick < num_topk:
                    given = topk_idx[token, pick]
                    weight = topk_weights[token, pick]
                    grad = grad_topk_weights[token, pick]
                run = T.alloc_var("int32")
                run = num_sums
                balance = T.alloc_local((2,), "float32")
                balance[0], balance[1] = 0, 0
                if num_sums > 0:
                    if token < num_masked and mask[token]:
                        run = T.truncdiv(token, tokens_per_sum)
                    write_balance(scores, grad_scores_sum, grad_logits, token, run, lane, balance, room, scoring)
                else:
                    write_zeros(scores, grad_logits, first, WARP >> bits, lane, room)
                expert = T.alloc_var("int32")
                picked = T.alloc_var("float32")
                expert, picked = -1, 0
                if given >= T.int64(0) and given < T.cast(num_experts, "int64"):
                    expert = T.cast(given, "int32")
                    picked = scores[token, expert]
                else:
                    weight, grad = 0, 0
                route = T.alloc_var("float32")
                route = routed_scaling_factor * grad - sum_of_token(grad * weight, bits)
                route = route / (sum_of_token(picked, bits) + T.float32(EPSILON))
                # Equal where token and expert are; lanes without a pick have keys of their own.
                key, leader = T.alloc_var("int32"), T.alloc_var("int32")
                key = T.if_then_else(expert >= 0, expert + (lane >> bits) * MAX_EXPERTS, -1 - lane)
                leader = T.__ffs(T.cast(T.match_any_sync(key), "int32")) - 1
                if T.any_sync(leader != lane) != 0:
                    route = sum_of_equals(key, route, lane - pick, num_topk)
                T.sync_warp()  # the row is written before what goes over it
                if expert >= 0 and leader == lane:
                    if run < num_sums and expert < num_summed:
                        route += (grad_scores_sum[run, expert] - balance[0]) * balance[1]
                    grad_logits[token, expert] = score_derivative(picked, scoring) * route
            if pdl:
                T.pdl_trigger()

    return moe_topk_gate_backward


@T.macro
def write_balance(
    scores: Any,
    grad_scores_sum: Any,
    grad_logits: Any,
    token: Any,
    run: Any,
    lane: Any,
    balance: Any,
    room: int,
    scoring: str,
) -> None:
    """Write a token's gradient by the balance loss; leave the mean gradient and 1 / (sum of scores) in `balance`.

    For a token that is in no run, both stay 0.
    """
    (num_sums, num_summed), num_experts = grad_scores_sum.shape, grad_logits.shape[1]
    row, slopes = T.alloc_local((room // WARP,), "float32"), T.alloc_local((room // WARP,), "float32")
    for i in T.unroll(room // WARP):
        row[i], slopes[i] = 0, 0
        if i * WARP + lane < num_experts:
            row[i] = scores[token, i * WARP + lane]
        if run < num_sums and i * WARP + lane < num_summed:
            slopes[i] = grad_scores_sum[run, i * WARP + lane]
    if run < num_sums:
        total, mean = T.alloc_var("float32"), T.alloc_var("float32")
        total, mean = 0, 0
        for i in T.unroll(room // WARP):
            total += row[i]
            mean += slopes[i] * row[i]
        balance[1] = T.float32(1) / T.warp_reduce_sum(total)
        balance[0] = T.warp_reduce_sum(mean) * balance[1]
    for i in T.unroll(room // WARP):
        if i * WARP + lane < num_experts:
            slope = (slopes[i] - balance[0]) * balance[1]
            grad_logits[token, i * WARP + lane] = score_derivative(row[i], scoring) * slope


@T.macro
def write_zeros(scores: Any, grad_logits: Any, first: Any, count: Any, lane: Any, room: int) -> None:
    """Write what no pick changes, without a balance loss, to the rows of `count` tokens from `first` on."""
    num_tokens, num_experts = grad_logits.shape
    per_lane = -(-room // (WARP * _VECTOR))
    at_once = min(_MOST_TOKENS, max(1, _HELD // per_lane))
    rows = T.alloc_local((at_once, per_lane, _VECTOR), "float32")
    last = T.alloc_var("int32")
    last = T.min(first + count, num_tokens)
    if num_experts % _VECTOR == 0 and scores.strides[0] % _VECTOR == 0 and is_aligned(scores, grad_logits):
        for step in T.unroll(_MOST_TOKENS // at_once):
            begin = first + step * at_once
            for s in T.unroll(at_once):
                for i in T.unroll(per_lane):
                    if begin + s < last and (i * WARP + lane) * _VECTOR < num_experts:
                        for v in T.vectorized(_VECTOR):
                            rows[s, i, v] = vectors(scores)[begin + s, i * WARP + lane, v]
            for s in T.unroll(at_once):
                for i in T.unroll(per_lane):
                    for v in T.unroll(_VECTOR):
                        rows[s, i, v] = unpicked(rows[s, i, v])
                    if begin + s < last and (i * WARP + lane) * _VECTOR < num_experts:
                        for v in T.vectorized(_VECTOR):
                            vectors(grad_logits)[begin + s, i * WARP + lane, v] = rows[s, i, v]
    else:
        for s, i in T.grid(last - first, T.ceildiv(num_experts, WARP)):
            if i * WARP + lane < num_experts:
                one = T.alloc_var("float32")
                one = scores[first + s, i * WARP + lane]
                grad_logits[first + s, i * WARP + lane] = unpicked(one)


def unpicked(score: Any) -> Any:
    """0 times the derivative: a score is NaN, or has a derivative that is a number."""
    return T.if_then_else(T.isnan(score), score, T.float32(0))


def vectors(rows: Any) -> Any:
    """Rows as vectors, where their size, their stride and their address let them be."""
    (num_rows, size), stride = rows.shape, rows.strides[0] if rows.strides else rows.shape[1]
    shape, strides = (num_rows, size // _VECTOR, _VECTOR), (stride // _VECTOR * _VECTOR, _VECTOR, 1)
    return T.StridedTensor(shape, strides, rows.dtype, data=rows.data)


def is_aligned(*tensors: Any) -> Any:
    """Whether vectors can be loaded from, and stored to, the beginning of all of them."""
    address: Any = T.int64(0)
    for tensor in tensors:
        address = address | T.call_extern("int64", "__cvta_generic_to_global", T.address_of(tensor[0, 0]))
    return address % (_VECTOR * 4) == 0


@T.macro
def sum_of_token(value: Any, bits: Any) -> Any:
    """The sum of a value over the lanes of a token, as a tree."""
    total = T.alloc_var("float32")
    total = value
    for distance in (4, 3):
        if bits > distance:
            total += T.shfl_xor(total, 1 << distance)
    for distance in (2, 1, 0):
        total += T.shfl_xor(total, 1 << distance)
    return total


@T.macro
def sum_of_equals(key: Any, route: Any, first_lane: Any, num_topk: Any) -> Any:
    """The sum of the routes of the lanes with this lane's key, in the order of the picks."""
    total = T.alloc_var("float32")
    total = 0
    for j in T.serial(num_topk):
        other, other_route = T.alloc_var("int32"), T.alloc_var("float32")
        other, other_route = T.shfl_sync(key, first_lane + j), T.shfl_sync(route, first_lane + j)
        if other == key:
            total += other_route
    return total
