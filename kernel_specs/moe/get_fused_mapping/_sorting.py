"""Pieces of the counting sort of ``moe.get_fused_mapping``, each done by all threads of a block.

Shared memory: ``totals`` picks of each expert, ``starts`` its first position, ``bases`` the position of the block's
first pick of it, ``cursors`` that of each warp's first, ``mine`` how many the block has, ``slots`` their first place
among the block's sorted picks.
"""

from typing import Any

import tilelang.language as T

from kernel_specs._cuda import once
from kernel_specs.moe._selection import WARP

_VECTOR = 4
"""Counts that are loaded at once."""


def num_columns_of(num_experts: Any) -> Any:
    """Counts of a slice: a vector's worth for every few experts."""
    return T.ceildiv(num_experts, _VECTOR) * _VECTOR


def num_slices_of(slice_counts: Any, num_experts: Any) -> Any:
    """Slices that the picks are cut into: one if there is no memory for their counts."""
    return T.max(1, T.truncdiv(slice_counts.shape[0], num_columns_of(num_experts)))


def slice_of(topk_idx: Any, block: Any, num_slices: Any) -> tuple[Any, Any]:
    """The first pick of a block's slice, and how many there are; less than 1 in slices past the last pick."""
    num_picks = topk_idx.shape[0] * topk_idx.shape[1]
    size = T.truncdiv(num_picks + num_slices - 1, num_slices)
    return block * size, T.min(size, num_picks - block * size)


@T.macro
def clear(counts: Any, size: Any, threads: int) -> None:
    """Set the first `size` counts to 0."""
    for i in once(T.ceildiv(size, threads)):
        if i * threads + T.get_thread_binding() < size:
            counts[i * threads + T.get_thread_binding()] = 0


@T.macro
def hold_picks(
    topk_idx: Any, first: Any, size: Any, chunk: Any, num_experts: Any, held: Any, rounds: int, threads: int
) -> None:
    """Load a thread's picks; what is no expert becomes a negative number that no other lane has."""
    warp, lane = T.get_thread_binding() // WARP, T.get_thread_binding() % WARP
    picks = T.view(topk_idx, (topk_idx.shape[0] * topk_idx.shape[1],))
    given = T.alloc_local((rounds,), "int64")
    begin = T.alloc_var("int32")
    begin = chunk * (threads * rounds) + warp * (rounds * WARP) + lane
    for i in T.unroll(rounds):
        given[i] = T.int64(-1)
        if begin + i * WARP < size:
            given[i] = picks[first + begin + i * WARP]
    for i in T.unroll(rounds):
        held[i] = -1 - lane
        if given[i] >= T.int64(0) and given[i] < T.cast(num_experts, "int64"):
            held[i] = T.cast(given[i], "int32")


@T.macro
def count_picks(
    topk_idx: Any, first: Any, size: Any, num_experts: Any, counts: Any, held: Any, rounds: int, threads: int
) -> None:
    """Add how often `size` picks from `first` on name each expert to `counts`."""
    for chunk in once(T.max(1, T.ceildiv(size, threads * rounds))):
        hold_picks(topk_idx, first, size, chunk, num_experts, held, rounds, threads)
        if chunk == 0:
            clear(counts, num_columns_of(num_experts), threads)
            T.sync_threads()
        for i in T.unroll(rounds):
            if held[i] >= 0:
                T.atomic_add(counts[held[i]], 1)
    T.sync_threads()


@T.macro
def add_slices(
    slice_counts: Any, num_experts: Any, block: Any, bases: Any, totals: Any, batch: int, threads: int
) -> None:
    """Add each expert's counts of the slices before the block's to `bases`, and of all to `totals`.

    A thread adds up four experts in one group of consecutive slices.
    """
    num_slices, thread = num_slices_of(slice_counts, num_experts), T.get_thread_binding()
    rows = T.Tensor((slice_counts.shape[0] // _VECTOR, _VECTOR), "int32", data=slice_counts.data)
    counts = T.alloc_local((batch, _VECTOR), "int32")
    earlier, total = T.alloc_local((_VECTOR,), "int32"), T.alloc_local((_VECTOR,), "int32")
    width, groups, per_group = (T.alloc_var("int32") for _ in range(3))
    width = T.ceildiv(num_experts, _VECTOR)
    groups = T.max(1, T.truncdiv(threads, width))
    per_group = T.truncdiv(num_slices + groups - 1, groups)
    for pass_ in once(T.ceildiv(width, threads)):
        group, column = T.alloc_var("int32"), T.alloc_var("int32")
        group = T.truncdiv(pass_ * threads + thread, width)
        column = pass_ * threads + thread - group * width
        for v in T.unroll(_VECTOR):
            earlier[v], total[v] = 0, 0
        for step in once(T.ceildiv(per_group, batch)):
            begin, left, at = (T.alloc_var("int32") for _ in range(3))
            begin = group * per_group + step * batch
            left = T.if_then_else(group < groups, T.min(num_slices, group * per_group + per_group), 0) - begin
            at = begin * width + column
            for j in T.unroll(batch):
                for v in T.vectorized(_VECTOR):
                    counts[j, v] = 0
                if j < left:
                    for v in T.vectorized(_VECTOR):
                        counts[j, v] = rows[at + j * width, v]
            for j in T.unroll(batch):
                for v in T.unroll(_VECTOR):
                    total[v] += counts[j, v]
                    if begin + j < block:
                        earlier[v] += counts[j, v]
        if group < groups:
            for v in T.unroll(_VECTOR):
                T.atomic_add(bases[column * _VECTOR + v], earlier[v])
                T.atomic_add(totals[column * _VECTOR + v], total[v])


@T.macro
def rank_picks(cursors: Any, num_experts: Any, held: Any, ranks: Any, rounds: int) -> None:
    """Say how many equal picks of the warp come before each; leave how many there are in `cursors`."""
    warp, lane = T.get_thread_binding() // WARP, T.get_thread_binding() % WARP
    equals = T.alloc_local((rounds,), "uint32")
    for i in T.unroll(rounds):
        equals[i] = T.match_any_sync(held[i])
    for i in T.unroll(rounds):
        leader, count = T.alloc_var("int32"), T.alloc_var("int32")
        leader = T.__ffs(T.cast(equals[i], "int32")) - 1
        count = 0
        if held[i] >= 0 and lane == leader:
            count = cursors[warp * num_experts + held[i]]
        count = T.shfl_sync(count, leader)
        if held[i] >= 0 and lane == leader:
            cursors[warp * num_experts + held[i]] = count + T.cast(T.popcount(equals[i]), "int32")
        below = equals[i] & ((T.uint32(1) << T.cast(lane, "uint32")) - T.uint32(1))
        ranks[i] = count + T.cast(T.popcount(below), "int32")
        T.sync_warp()


@T.macro
def lay_out(sizes: Any, starts: Any, sums: Any, num_experts: Any, alignment: Any, threads: int) -> None:
    """Put the sum of the padded sizes before each expert's, and last that of all, into `starts`."""
    thread = T.get_thread_binding()
    warp, lane = thread // WARP, thread % WARP
    carry, own, running, other = (T.alloc_var("int32") for _ in range(4))
    carry = 0
    for i in once(T.ceildiv(num_experts, threads)):
        own = 0
        if i * threads + thread < num_experts:
            own = T.truncdiv(sizes[i * threads + thread] + alignment - 1, alignment) * alignment
        running = own
        for distance in (1, 2, 4, 8, 16):
            other = T.shfl_up(running, distance)
            if lane >= distance:
                running += other
        # By turns, two rows of sums: no warp writes to one that another still reads.
        if lane == WARP - 1:
            sums[i % 2 * WARP + warp] = running
        T.sync_threads()
        running += carry
        for w in T.unroll(threads // WARP):
            if w < warp:
                running += sums[i % 2 * WARP + w]
            carry += sums[i % 2 * WARP + w]
        if i * threads + thread < num_experts:
            starts[i * threads + thread] = running - own
    if thread == 0:
        starts[num_experts] = carry
    T.sync_threads()


@T.macro
def write_expert(by_expert: Any, starts: Any, expert: Any) -> None:
    """Write where an expert's positions start and end, and how many there are."""
    expert_start, expert_end, num_tokens_per_expert = by_expert
    expert_start[expert] = starts[expert]
    expert_end[expert] = starts[expert + 1]
    num_tokens_per_expert[expert] = starts[expert + 1] - starts[expert]


@T.macro
def give_cursors(cursors: Any, bases: Any, expert: Any, num_experts: Any, warps: int) -> Any:
    """Turn what each warp has of an expert into the position of its first; give what all of them have."""
    cursor, count = T.alloc_var("int32"), T.alloc_var("int32")
    cursor = bases[expert]
    for w in T.unroll(warps):
        count = cursors[w * num_experts + expert]
        cursors[w * num_experts + expert] = cursor
        cursor += count
    return cursor - bases[expert]


@T.macro
def sort_picks(
    sorted_picks: Any,
    token_topk_to_pos: Any,
    cursors: Any,
    bases: Any,
    slots: Any,
    held: Any,
    ranks: Any,
    first: Any,
    size: Any,
    num_experts: Any,
    num_positions: Any,
    rounds: int,
) -> None:
    """Write the position of each of `size` picks from `first` on; put the picks in order of position."""
    warp, lane = T.get_thread_binding() // WARP, T.get_thread_binding() % WARP
    positions = T.view(token_topk_to_pos, (token_topk_to_pos.shape[0] * token_topk_to_pos.shape[1],))
    for i in T.unroll(rounds):
        pick, position, slot = (T.alloc_var("int32") for _ in range(3))
        pick = (warp * rounds + i) * WARP + lane
        position = -1
        if held[i] >= 0:
            position = cursors[warp * num_experts + held[i]] + ranks[i]
            slot = slots[held[i]] + position - bases[held[i]]
            sorted_picks[slot, 0] = position
            sorted_picks[slot, 1] = (held[i] << 16) | pick
        if pick < size:
            positions[first + pick] = T.if_then_else(position < num_positions, position, -1)


@T.macro
def write_sorted(
    sorted_picks: Any, by_position: Any, size: Any, first: Any, num_topk: Any, rounds: int, threads: int
) -> None:
    """Write `size` sorted picks by position, but for those that there is no room for."""
    pos_to_expert, pos_to_token, pos_to_token_topk = by_position
    for i in T.unroll(rounds):
        slot = i * threads + T.get_thread_binding()
        if slot < size:
            position, pick = T.alloc_var("int32"), T.alloc_var("int32")
            position, pick = sorted_picks[slot, 0], sorted_picks[slot, 1]
            if position < pos_to_expert.shape[0]:
                pos_to_expert[position] = pick >> 16
                pos_to_token[position] = T.truncdiv(first + (pick & 0xFFFF), num_topk)
                pos_to_token_topk[position] = first + (pick & 0xFFFF)


@T.macro
def clear_padding(
    by_position: Any, starts: Any, totals: Any, num_experts: Any, num_slices: Any, block: Any, threads: int
) -> None:
    """Write -1 to the positions that no pick has: a warp, to those after the picks of some experts."""
    thread, num_positions = T.get_thread_binding(), by_position[0].shape[0]
    warp, lane, warps = thread // WARP, thread % WARP, threads // WARP
    expert, filled, end = (T.alloc_var("int32") for _ in range(3))
    for i in once(T.truncdiv(num_experts + num_slices * warps - 1, num_slices * warps)):
        expert = (i * num_slices + block) * warps + warp
        if expert < num_experts:
            filled = starts[expert] + totals[expert]
            end = T.min(starts[expert + 1], num_positions)
            for j in once(T.ceildiv(end - filled, WARP)):
                if filled + j * WARP + lane < end:
                    clear_position(by_position, filled + j * WARP + lane)
    filled = starts[num_experts]
    for i in once(T.truncdiv(num_positions - filled + num_slices * threads - 1, num_slices * threads)):
        rest = filled + (i * num_slices + block) * threads + thread
        if rest < num_positions:
            clear_position(by_position, rest)


@T.macro
def clear_position(by_position: Any, position: Any) -> None:
    """Write -1 to one position."""
    pos_to_expert, pos_to_token, pos_to_token_topk = by_position
    pos_to_expert[position] = -1
    pos_to_token[position] = -1
    pos_to_token_topk[position] = -1
