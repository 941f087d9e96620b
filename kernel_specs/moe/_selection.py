"""Pieces of the kernels that pick the best experts: ranking keys, and picking with one warp a token.

A warp holds the keys of a token in shared memory, in 32 *chunks* of consecutive experts, one a lane.
Each lane knows the largest key of its chunk, its *head*. A pick takes the largest head, finds which chunk
and which place in it (the first of equals, so the smaller index wins), crosses the key out, and finds that
chunk's new head, with the whole warp at work each time. What a pick costs depends neither on the number of
experts nor on their scores.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import tilelang.language as T

WARP = 32

CROSSED_OUT = -(2**31)
"""Key of what cannot be picked: below the key of every score."""


@T.macro
def rank_key(score: Any) -> Any:
    """Integer that orders as `score` does: -0.0 equals 0.0, NaN equals minus infinity."""
    bits = T.reinterpret(T.max(score, -T.infinity("float32")), "int32")
    return T.if_then_else(bits < 0, CROSSED_OUT - bits, bits)


@dataclass(frozen=True)
class Chunks:
    """How the keys of one token lie in shared memory.

    Attributes:
        capacity: keys that there is room for, a multiple of 32.
    """

    capacity: int

    @property
    def size(self) -> int:
        """Keys of one chunk."""
        return self.capacity // WARP

    @property
    def stride(self) -> int:
        """Words from one chunk to the next, so that lanes reading their own chunks meet no bank conflict."""
        return self.size + 4 if self.size % 8 == 0 else self.size

    @property
    def words(self) -> int:
        """Words of one token's keys."""
        return WARP * self.stride

    def place(self, index: Any) -> Any:
        """Word that holds the key of candidate `index`."""
        return index + index // self.size * (self.stride - self.size)


@T.macro
def load_row(scores: Any, token: Any, num_experts: Any, chunks: Chunks, keys: Any, warp: Any, lane: Any) -> None:
    """Put the keys of a row where `pick` expects them, and cross out the room that is left."""
    row = T.alloc_local((chunks.size,), "float32")
    for i in T.unroll(chunks.size):
        row[i] = 0
        if i * WARP + lane < num_experts:
            row[i] = scores[token, i * WARP + lane]
    for i in T.unroll(chunks.size):
        key = T.alloc_var("int32")
        key = rank_key(row[i])
        if i * WARP + lane >= num_experts:
            key = CROSSED_OUT
        keys[warp, chunks.place(i * WARP + lane)] = key


@T.macro
def first_lane(predicate: Any) -> Any:
    """The lowest lane for which `predicate` holds, -1 if there is none. All lanes of a warp call it."""
    return T.__ffs(T.cast(T.ballot_sync(predicate), "int32")) - 1


@T.macro
def pick(chunks: Chunks, keys: Any, warp: Any, lane: Any, num_topk: Any) -> Any:
    """Give lane j of a warp the index of the j-th best candidate, and 0 to lanes from `num_topk` on.

    Args:
        chunks: how `keys` is laid out.
        keys: int32 ``(warps, chunks.words)`` in shared memory; this warp's row is complete, and is used up.
        warp, lane: of this thread.
        num_topk: at most 32, and at most the number of candidates.
    """
    picked = T.alloc_var("int32")
    picked = 0
    head = T.alloc_var("int32")
    head = CROSSED_OUT
    for i in T.unroll(chunks.size):
        head = T.max(head, keys[warp, lane * chunks.stride + i])
    place = T.alloc_var("int32")
    place = lane % chunks.size
    for j in T.serial(num_topk):
        best = T.alloc_var("int32")
        best = T.warp_reduce_max(head)
        owner = T.alloc_var("int32")
        owner = first_lane(head == best)
        key = T.alloc_var("int32")
        key = keys[warp, owner * chunks.stride + place]
        position = T.alloc_var("int32")
        position = first_lane(key == best)
        if place == position:
            key = CROSSED_OUT
        keys[warp, owner * chunks.stride + place] = key
        if lane == j:
            picked = owner * chunks.size + position
        new_head = T.alloc_var("int32")
        new_head = T.warp_reduce_max(key)
        if lane == owner:
            head = new_head
        T.sync_warp()
    return picked
