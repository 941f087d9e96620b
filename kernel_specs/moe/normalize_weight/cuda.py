"""``moe.normalize_weight`` for CUDA: a group of lanes a token.

What it moves is so little that the time is that of a launch and of one trip to memory; so the way from the
thread's index to the load is kept short, and the sum takes no more steps than the widest token needs.
"""

from dataclasses import dataclass
from typing import Any

import tilelang.language as T

from kernel_specs._cuda import has_pdl
from kernel_specs.moe._weights import EPSILON, HALVES
from tkc.model import Specialization, Target

PASS_CONFIGS: dict[str, object] = {"tl.disable_safe_memory_legalize": True}

_EIGHT = 8


@dataclass(frozen=True)
class Config:
    """Tuning choices.

    Attributes:
        threads: of a block, a multiple of 32.
        width: consecutive weights of one lane where a token has eight: 1, 2 or 4.
    """

    threads: int = 512
    width: int = 1


DEFAULT = Config()


def build(specialization: Specialization, target: Target, config: Config = DEFAULT) -> Any:
    """Give the program, which serves any number of weights up to 32.

    A token has 8 lanes if they are enough, else 32. Lanes without a weight add zeros, which changes no bit
    of the denominator: x + 0 is x, and 1e-20 - 0 is 1e-20.
    """
    threads, width = config.threads, config.width
    pdl = has_pdl(target)
    num_tokens, num_topk = T.dynamic("num_tokens"), T.dynamic("num_topk")
    weights_stride = T.dynamic("weights_stride", "int64")
    lanes = T.if_then_else(num_topk == _EIGHT, _EIGHT // width, T.if_then_else(num_topk < _EIGHT, _EIGHT, 32))

    @T.prim_func
    def normalize_weight(
        topk_weights: T.StridedTensor[(num_tokens, num_topk), (weights_stride, 1), "float32"],
        denominator: T.Tensor[(num_tokens,), "float32"],
        normalized_weights: T.Tensor[(num_tokens, num_topk), "float32"],
    ):
        with T.Kernel(T.ceildiv(num_tokens * lanes, threads), threads=threads) as block:
            thread = T.alloc_var("int32")
            thread = block * threads + T.get_thread_binding()
            if pdl:
                T.pdl_sync()
            if width > 1 and num_topk == _EIGHT:
                normalize_vector(topk_weights, denominator, normalized_weights, thread, width)
            elif num_topk <= _EIGHT:
                normalize(topk_weights, denominator, normalized_weights, thread, _EIGHT)
            else:
                normalize(topk_weights, denominator, normalized_weights, thread, 2 * HALVES[0])
            if pdl:
                T.pdl_trigger()

    return normalize_weight


@T.macro
def normalize(topk_weights: Any, denominator: Any, normalized_weights: Any, thread: Any, lanes: int) -> None:
    """One weight a lane, `lanes` lanes a token."""
    num_tokens, num_topk = topk_weights.shape
    token, lane = thread // lanes, thread % lanes
    weight, total = T.alloc_var("float32"), T.alloc_var("float32")
    weight = 0
    if token < num_tokens and lane < num_topk:
        weight = topk_weights[token, lane]
    total = weight
    for half in HALVES:
        if half < lanes:
            total += T.shfl_xor(total, half)
    total = T.float32(EPSILON) + total
    if token < num_tokens and lane < num_topk:
        normalized_weights[token, lane] = weight / total
        if lane == 0:
            denominator[token] = total


@T.macro
def normalize_vector(topk_weights: Any, denominator: Any, normalized_weights: Any, thread: Any, width: int) -> None:
    """`width` weights a lane, of the eight that a token has."""
    num_tokens, lanes = topk_weights.shape[0], _EIGHT // width
    token, lane = thread // lanes, thread % lanes
    weights, sums = T.alloc_local((width,), "float32"), T.alloc_local((width,), "float32")
    misaligned = T.alloc_var("int64")
    misaligned = T.call_extern("int64", "__cvta_generic_to_global", T.address_of(topk_weights[0, 0]))
    misaligned |= topk_weights.strides[0] * 4
    T.clear(weights)
    if token < num_tokens:
        if misaligned % (4 * width) == 0:
            load = T.ldg64 if width == 2 else T.ldg128
            weights[0:width] = T.reinterpret(load(topk_weights[token, lane * width]), f"float32x{width}")
        else:
            for i in T.unroll(width):
                weights[i] = topk_weights[token, lane * width + i]
    for i in T.unroll(width):
        sums[i] = weights[i]
    for half in HALVES:
        if width <= half < _EIGHT:
            for i in T.unroll(width):
                sums[i] = sums[i] + T.shfl_xor(sums[i], half // width)
        elif half < width:
            for i in T.unroll(half):
                sums[i] = sums[i] + sums[i + half]
    sums[0] = T.float32(EPSILON) + sums[0]
    if token < num_tokens:
        for i in T.unroll(width):
            weights[i] = weights[i] / sums[0]
        for i in T.vectorized(width):
            normalized_weights[token, lane * width + i] = weights[i]
        if lane == 0:
            denominator[token] = sums[0]
