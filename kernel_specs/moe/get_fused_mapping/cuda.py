"""``moe.get_fused_mapping`` for CUDA: a counting sort in two kernels.

The first counts experts in equal slices of the picks. In the second each block adds up the counts of the slices before
its own and of all, lays out the experts, and gives its picks their positions in order. A warp has a run of picks; among
the 32 that it looks at together, a pick comes after the equal ones of lower lanes. So the order shows neither how many
blocks there are nor which of them was first. Few picks are one slice, which the second kernel counts itself; the first
has no block then, and nothing is launched for it.

A block sorts its picks in shared memory before it writes them by position: then neighbours in a warp write neighbours
in memory, where picks in their own order would each touch a line of memory for 4 bytes. Padding is all that is cleared.
"""

from dataclasses import dataclass
from typing import Any

import tilelang.language as T

from kernel_specs._cuda import has_pdl, once
from kernel_specs.moe._routing import MAX_EXPERTS
from kernel_specs.moe._selection import WARP
from kernel_specs.moe.get_fused_mapping._sorting import (
    add_slices,
    clear,
    clear_padding,
    count_picks,
    give_cursors,
    hold_picks,
    lay_out,
    num_columns_of,
    num_slices_of,
    rank_picks,
    slice_of,
    sort_picks,
    write_expert,
    write_sorted,
)
from tkc.model import Specialization, Target

PASS_CONFIGS: dict[str, object] = {
    # Every barrier that is needed is written.
    "tl.disable_thread_storage_sync": True,
    # Every index below is in range as written.
    "tl.disable_safe_memory_legalize": True,
}


@dataclass(frozen=True)
class Config:
    """Tuning choices.

    Attributes:
        threads: of a block; a multiple of a warp's 32, at most 1024.
        rounds: picks of a thread that are sorted together.
        batch: slices whose counts a thread loads before it adds the first.
    """

    threads: int = 256
    rounds: int = 4
    batch: int = 16


DEFAULT = Config()


def build(specialization: Specialization, target: Target, config: Config = DEFAULT) -> Any:
    """Give the program for up to 1024 experts."""
    threads, pdl = config.threads, has_pdl(target)
    num_tokens, num_topk, num_experts = T.dynamic("num_tokens"), T.dynamic("num_topk"), T.dynamic("num_experts")
    num_positions, num_slice_counts = T.dynamic("num_positions"), T.dynamic("num_slice_counts")

    @T.prim_func
    def get_fused_mapping(
        topk_idx: T.Tensor[(num_tokens, num_topk), "int64"],
        slice_counts: T.Tensor[(num_slice_counts,), "int32"],
        pos_to_expert: T.Tensor[(num_positions,), "int32"],
        pos_to_token: T.Tensor[(num_positions,), "int32"],
        pos_to_token_topk: T.Tensor[(num_positions,), "int32"],
        token_topk_to_pos: T.Tensor[(num_tokens, num_topk), "int32"],
        expert_start: T.Tensor[(num_experts,), "int32"],
        expert_end: T.Tensor[(num_experts,), "int32"],
        num_tokens_per_expert: T.Tensor[(num_experts,), "int32"],
        alignment: T.int32,
    ):
        with T.Kernel(num_counting_blocks(slice_counts, num_experts), threads=threads) as block:
            if pdl:
                T.pdl_sync()
            count(topk_idx, slice_counts, num_experts, block, config)
            if pdl:
                T.pdl_trigger()
        with T.Kernel(num_slices_of(slice_counts, num_experts), threads=threads) as block:
            if pdl:
                T.pdl_sync()
            by_position = (pos_to_expert, pos_to_token, pos_to_token_topk)
            by_expert = (expert_start, expert_end, num_tokens_per_expert)
            totals = T.alloc_shared((MAX_EXPERTS,), "int32")
            starts = T.alloc_shared((MAX_EXPERTS + 1,), "int32")
            place(
                topk_idx,
                slice_counts,
                by_position,
                token_topk_to_pos,
                by_expert,
                alignment,
                totals,
                starts,
                block,
                config,
            )
            num_slices = num_slices_of(slice_counts, num_experts)
            clear_padding(by_position, starts, totals, num_experts, num_slices, block, threads)
            if pdl:
                T.pdl_trigger()

    return get_fused_mapping


def num_counting_blocks(slice_counts: Any, num_experts: Any) -> Any:
    """Blocks of the first kernel: none if the only slice is counted by the second."""
    return T.min(1, slice_counts.shape[0]) * num_slices_of(slice_counts, num_experts)


@T.macro
def count(topk_idx: Any, slice_counts: Any, num_experts: Any, block: Any, config: Config) -> None:
    """Count a block's slice of the picks into its part of `slice_counts`."""
    threads, rounds, thread = config.threads, config.rounds, T.get_thread_binding()
    num_columns = num_columns_of(num_experts)
    counts = T.alloc_shared((MAX_EXPERTS,), "int32")
    held = T.alloc_local((rounds,), "int32")
    first, size = T.alloc_var("int32"), T.alloc_var("int32")
    first, size = slice_of(topk_idx, block, num_slices_of(slice_counts, num_experts))
    count_picks(topk_idx, first, size, num_experts, counts, held, rounds, threads)
    for i in once(T.ceildiv(num_columns, threads)):
        if i * threads + thread < num_columns:
            slice_counts[block * num_columns + i * threads + thread] = counts[i * threads + thread]


@T.macro
def place(
    topk_idx: Any,
    slice_counts: Any,
    by_position: Any,
    token_topk_to_pos: Any,
    by_expert: Any,
    alignment: Any,
    totals: Any,
    starts: Any,
    block: Any,
    config: Config,
) -> None:
    """Give a block's picks their positions; leave the picks and the first position of each expert to all threads."""
    threads, rounds, warps, thread = config.threads, config.rounds, config.threads // WARP, T.get_thread_binding()
    num_experts = by_expert[0].shape[0]
    num_slices, num_columns = num_slices_of(slice_counts, num_experts), num_columns_of(num_experts)
    mine = T.alloc_shared((MAX_EXPERTS,), "int32")
    bases = T.alloc_shared((MAX_EXPERTS,), "int32")
    slots = T.alloc_shared((MAX_EXPERTS + 1,), "int32")
    cursors = T.alloc_shared((warps * MAX_EXPERTS,), "int32")
    sorted_picks = T.alloc_shared((threads * rounds, 2), "int32")
    sums = T.alloc_shared((2 * WARP,), "int32")
    held, ranks = T.alloc_local((rounds,), "int32"), T.alloc_local((rounds,), "int32")
    first, size = T.alloc_var("int32"), T.alloc_var("int32")
    first, size = slice_of(topk_idx, block, num_slices)
    if slice_counts.shape[0] == 0:
        count_picks(topk_idx, first, size, num_experts, totals, held, rounds, threads)
    for chunk in once(T.max(1, T.ceildiv(size, threads * rounds))):
        if chunk > 0:
            T.sync_threads()
        hold_picks(topk_idx, first, size, chunk, num_experts, held, rounds, threads)
        clear(cursors, num_experts * warps, threads)
        if chunk == 0:
            clear(bases, num_columns, threads)
            if slice_counts.shape[0] > 0:
                clear(totals, num_columns, threads)
                T.sync_threads()
                add_slices(slice_counts, num_experts, block, bases, totals, config.batch, threads)
            else:
                T.sync_threads()
        else:
            T.sync_threads()
        rank_picks(cursors, num_experts, held, ranks, rounds)
        T.sync_threads()
        if chunk == 0:
            lay_out(totals, starts, sums, num_experts, alignment, threads)
        for i in once(T.ceildiv(num_experts, threads)):
            expert = i * threads + thread
            if expert < num_experts:
                if chunk == 0:
                    bases[expert] += starts[expert]
                    if block == num_slices - 1:
                        write_expert(by_expert, starts, expert)
                else:
                    bases[expert] += mine[expert]
                mine[expert] = give_cursors(cursors, bases, expert, num_experts, warps)
        lay_out(mine, slots, sums, num_experts, 1, threads)
        begin, left = first + chunk * (threads * rounds), size - chunk * (threads * rounds)
        sort_picks(
            sorted_picks,
            token_topk_to_pos,
            cursors,
            bases,
            slots,
            held,
            ranks,
            begin,
            left,
            num_experts,
            by_position[0].shape[0],
            rounds,
        )
        T.sync_threads()
        write_sorted(sorted_picks, by_position, slots[num_experts], begin, topk_idx.shape[1], rounds, threads)
