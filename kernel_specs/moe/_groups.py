"""Groups of experts that compete before their experts do, with one warp a token.

The keys lie in shared memory as `_selection` lays them out. The lanes are dealt to the groups, a power of
two of them each; a group's lanes share the walk over its keys.
"""

from __future__ import annotations

from typing import Any

import tilelang.language as T

from kernel_specs.moe._selection import CROSSED_OUT, Chunks, rank_key

_HALVES = (16, 8, 4, 2, 1)


def lane_bits(num_groups: Any) -> Any:
    """Binary logarithm of the lanes that a group has, when each has as many as a warp can give."""
    return sum(T.cast(num_groups <= half, "int32") for half in _HALVES)


@T.macro
def rank_of_group(chunks: Chunks, keys: Any, warp: Any, lane: Any, num_experts: Any, num_groups: Any, both: Any) -> Any:
    """How many groups beat the one that a lane belongs to, group ``lane >> lane_bits(num_groups)``.

    A group's value is the sum of its two best keys, or its best key if `both` is 0; the smaller index wins a
    tie. All lanes of a warp call it; those past the last group get no meaning.
    """
    bits, size = T.alloc_var("int32"), T.alloc_var("int32")
    bits = lane_bits(num_groups)
    size = num_experts // num_groups
    group, part = lane >> bits, lane & ((1 << bits) - 1)
    best, second = T.alloc_var("float32"), T.alloc_var("float32")
    best, second = -T.infinity("float32"), -T.infinity("float32")
    if group < num_groups:
        for i in T.serial((size - part + (1 << bits) - 1) >> bits):
            value = T.alloc_var("float32")
            value = score_of(keys[warp, chunks.place(group * size + part + (i << bits))])
            second = T.max(second, T.min(best, value))
            best = T.max(best, value)
    for half in _HALVES:
        if half < (1 << bits):
            other, other_second = T.alloc_var("float32"), T.alloc_var("float32")
            other, other_second = T.shfl_xor(best, half), T.shfl_xor(second, half)
            second = T.max(T.min(best, other), T.max(second, other_second))
            best = T.max(best, other)
    mine, theirs = T.alloc_var("int32"), T.alloc_var("int32")
    mine = rank_key(T.if_then_else(both != 0, best + second, best))
    rank = T.alloc_var("int32")
    rank = 0
    for other_group in T.serial(num_groups):
        theirs = T.shfl_sync(mine, other_group << bits)
        if theirs > mine or (theirs == mine and other_group < group):
            rank += 1
    return rank


@T.macro
def cross_out_group(chunks: Chunks, keys: Any, warp: Any, lane: Any, num_experts: Any, num_groups: Any) -> None:
    """Take the experts of a lane's group out of the competition; all lanes of that group call it."""
    bits, size = T.alloc_var("int32"), T.alloc_var("int32")
    bits = lane_bits(num_groups)
    size = num_experts // num_groups
    group, part = lane >> bits, lane & ((1 << bits) - 1)
    for i in T.serial((size - part + (1 << bits) - 1) >> bits):
        keys[warp, chunks.place(group * size + part + (i << bits))] = CROSSED_OUT


@T.macro
def score_of(key: Any) -> Any:
    """The score that `rank_key` made `key` of; -0.0 has become 0.0 and NaN minus infinity."""
    return T.reinterpret(T.if_then_else(key < 0, CROSSED_OUT - key, key), "float32")
