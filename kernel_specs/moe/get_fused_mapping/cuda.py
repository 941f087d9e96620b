"""``moe.get_fused_mapping`` for CUDA: a counting sort in two kernels.

The first counts experts in equal slices of the picks. In the second each block adds up the counts of the
slices before its own, lays out the experts, and gives its picks their positions in order: a warp has a run of
picks, and among the 32 that it looks at together a pick comes after the equal ones of lower lanes.
"""

from typing import Any

import tilelang.language as T

from kernel_specs._cuda import has_pdl
from kernel_specs.moe._histogram import THREADS, count_slice
from kernel_specs.moe._routing import MAX_EXPERTS
from kernel_specs.moe._selection import WARP
from tkc.model import Specialization, Target

PASS_CONFIGS: dict[str, object] = {
    # Every barrier that is needed is written.
    "tl.disable_thread_storage_sync": True,
    # Every index below is in range as written.
    "tl.disable_safe_memory_legalize": True,
}

_WARPS = THREADS // WARP
_BATCH = 16
"""Counts that a thread loads before it adds the first."""
_EACH = MAX_EXPERTS // THREADS
"""Consecutive experts that a thread lays out."""


def build(specialization: Specialization, target: Target) -> Any:
    """Give the program for up to 1024 experts."""
    pdl = has_pdl(target)
    num_tokens, num_topk, num_experts = T.dynamic("num_tokens"), T.dynamic("num_topk"), T.dynamic("num_experts")
    num_positions, num_slices = T.dynamic("num_positions"), T.dynamic("num_slices")

    @T.prim_func
    def get_fused_mapping(
        topk_idx: T.Tensor[(num_tokens, num_topk), "int64"],
        slice_counts: T.Tensor[(num_slices, num_experts), "int32"],
        pos_to_expert: T.Tensor[(num_positions,), "int32"],
        pos_to_token: T.Tensor[(num_positions,), "int32"],
        pos_to_token_topk: T.Tensor[(num_positions,), "int32"],
        token_topk_to_pos: T.Tensor[(num_tokens, num_topk), "int32"],
        expert_start: T.Tensor[(num_experts,), "int32"],
        expert_end: T.Tensor[(num_experts,), "int32"],
        num_tokens_per_expert: T.Tensor[(num_experts,), "int32"],
        alignment: T.int32,
    ):
        with T.Kernel(num_slices, threads=THREADS) as block:
            if pdl:
                T.pdl_sync()
            thread = T.get_thread_binding()
            picks = T.view(topk_idx, (num_tokens * num_topk,))
            for i in T.serial(T.ceildiv(num_positions, num_slices * THREADS)):
                place = T.alloc_var("int32")
                place = (i * num_slices + block) * THREADS + thread
                if place < num_positions:
                    pos_to_expert[place] = -1
                    pos_to_token[place] = -1
                    pos_to_token_topk[place] = -1
            count_slice(picks, slice_counts, block, THREADS)
            if pdl:
                T.pdl_trigger()
        with T.Kernel(num_slices, threads=THREADS) as block:
            thread = T.get_thread_binding()
            warp, lane = thread // WARP, thread % WARP
            before = T.alloc_shared((MAX_EXPERTS,), "int32")
            sizes = T.alloc_shared((MAX_EXPERTS,), "int32")
            starts = T.alloc_shared((MAX_EXPERTS,), "int32")
            sums = T.alloc_shared((_WARPS,), "int32")
            cursors = T.alloc_shared((_WARPS, MAX_EXPERTS), "int32")
            if pdl:
                T.pdl_sync()
            add_slices(slice_counts, block, before, sizes, alignment)
            for i in T.serial(_WARPS * _EACH):
                cursors[i // _EACH, i % _EACH * THREADS + thread] = 0
            T.sync_threads()
            lay_out(sizes, starts, sums)
            if block == 0:
                for i in T.unroll(_EACH):
                    expert = i * THREADS + thread
                    if expert < num_experts:
                        expert_start[expert] = starts[expert]
                        expert_end[expert] = starts[expert] + sizes[expert]
                        num_tokens_per_expert[expert] = sizes[expert]
            first, size, run, rounds = (T.alloc_var("int32") for _ in range(4))
            size = T.truncdiv(num_tokens * num_topk + num_slices - 1, num_slices)
            run = T.ceildiv(size, THREADS) * WARP
            rounds = T.ceildiv(size, THREADS)
            first = block * size + warp * run
            run = T.min(T.min(size - warp * run, num_tokens * num_topk - first), run)
            flat_picks = T.view(topk_idx, (num_tokens * num_topk,))
            for i in T.serial(rounds):
                counted = T.alloc_var("int32")
                counted = pick_at(flat_picks, first, i * WARP + lane, run, lane, num_experts)
                if counted >= 0:
                    T.atomic_add(cursors[warp, counted], 1)
            T.sync_threads()
            for i in T.unroll(_EACH):
                cursor, count = T.alloc_var("int32"), T.alloc_var("int32")
                cursor = starts[i * THREADS + thread] + before[i * THREADS + thread]
                for w in T.unroll(_WARPS):
                    count = cursors[w, i * THREADS + thread]
                    cursors[w, i * THREADS + thread] = cursor
                    cursor += count
            T.sync_threads()
            positions = T.view(token_topk_to_pos, (num_tokens * num_topk,))
            for i in T.serial(rounds):
                named, leader, cursor_of, position, pick = (T.alloc_var("int32") for _ in range(5))
                named = pick_at(flat_picks, first, i * WARP + lane, run, lane, num_experts)
                equal = T.alloc_var("uint32")
                equal = T.match_any_sync(named)
                leader = T.__ffs(T.cast(equal, "int32")) - 1
                cursor_of = 0
                if named >= 0 and lane == leader:
                    cursor_of = cursors[warp, named]
                cursor_of = T.shfl_sync(cursor_of, leader)
                if named >= 0 and lane == leader:
                    cursors[warp, named] = cursor_of + T.cast(T.popcount(equal), "int32")
                below = equal & ((T.uint32(1) << T.cast(lane, "uint32")) - T.uint32(1))
                position = T.if_then_else(named >= 0, cursor_of + T.cast(T.popcount(below), "int32"), -1)
                T.sync_warp()
                pick = first + i * WARP + lane
                if position >= num_positions:
                    position = -1
                if i * WARP + lane < run:
                    positions[pick] = position
                if position >= 0:
                    pos_to_expert[position] = named
                    pos_to_token[position] = T.truncdiv(pick, num_topk)
                    pos_to_token_topk[position] = pick
            if pdl:
                T.pdl_trigger()

    return get_fused_mapping


@T.macro
def add_slices(slice_counts: Any, block: Any, before: Any, sizes: Any, alignment: Any) -> None:
    """Add up, for each expert, the counts of the slices before this block's, and of all, padded to the alignment."""
    thread = T.get_thread_binding()
    counts = T.alloc_local((_BATCH,), "int32")
    for i in T.unroll(_EACH):
        expert = i * THREADS + thread
        earlier, total = T.alloc_var("int32"), T.alloc_var("int32")
        earlier, total = 0, 0
        if expert < slice_counts.shape[1]:
            for step in T.serial(T.ceildiv(slice_counts.shape[0], _BATCH)):
                for j in T.unroll(_BATCH):
                    counts[j] = 0
                    if step * _BATCH + j < slice_counts.shape[0]:
                        counts[j] = slice_counts[step * _BATCH + j, expert]
                for j in T.unroll(_BATCH):
                    total += counts[j]
                    if step * _BATCH + j < block:
                        earlier += counts[j]
        before[expert] = earlier
        sizes[expert] = T.truncdiv(total + alignment - 1, alignment) * alignment


@T.macro
def lay_out(sizes: Any, starts: Any, sums: Any) -> None:
    """Put the sum of the sizes before each expert's into `starts`; all threads of the block call it."""
    thread = T.get_thread_binding()
    warp, lane = thread // WARP, thread % WARP
    own, running, other = T.alloc_var("int32"), T.alloc_var("int32"), T.alloc_var("int32")
    own = 0
    for i in T.unroll(_EACH):
        own += sizes[thread * _EACH + i]
    running = own
    for distance in (1, 2, 4, 8, 16):
        other = T.shfl_up(running, distance)
        if lane >= distance:
            running += other
    if lane == WARP - 1:
        sums[warp] = running
    T.sync_threads()
    running -= own
    for w in T.unroll(_WARPS):
        if w < warp:
            running += sums[w]
    for i in T.unroll(_EACH):
        starts[thread * _EACH + i] = running
        running += sizes[thread * _EACH + i]
    T.sync_threads()


@T.macro
def pick_at(flat_picks: Any, first: Any, place: Any, run: Any, lane: Any, num_experts: Any) -> Any:
    """The expert of a warp's pick; for none, a negative number that no other lane has."""
    expert = T.alloc_var("int32")
    expert = -1 - lane
    if place < run:
        given = T.alloc_var("int64")
        given = flat_picks[first + place]
        if given >= T.int64(0) and given < T.cast(num_experts, "int64"):
            expert = T.cast(given, "int32")
    return expert
