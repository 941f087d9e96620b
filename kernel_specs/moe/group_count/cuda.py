"""``moe.group_count`` for CUDA: slices counted in shared memory, then added."""

from typing import Any

import tilelang.language as T

from kernel_specs._cuda import has_pdl
from kernel_specs.moe._histogram import THREADS, add_slices, count_slice, num_adding_blocks, num_counting_blocks
from tkc.model import Specialization, Target

PASS_CONFIGS: dict[str, object] = {"tl.disable_safe_memory_legalize": True}


def build(specialization: Specialization, target: Target) -> Any:
    """Give the program: one kernel counts, one adds."""
    pdl = has_pdl(target)
    num_rows, num_columns = T.dynamic("num_rows"), T.dynamic("num_columns")
    num_partial_counts, num_groups = T.dynamic("num_partial_counts"), T.dynamic("num_groups")

    @T.prim_func
    def group_count(
        group_idx: T.Tensor[(num_rows, num_columns), "int64"],
        partial_counts: T.Tensor[(num_partial_counts,), "int32"],
        counts: T.Tensor[(num_groups,), "int32"],
    ):
        with T.Kernel(num_counting_blocks(partial_counts, num_groups), threads=THREADS) as block:
            if pdl:
                T.pdl_sync()
            count_slice(group_idx, partial_counts, counts, itself, block)
            if pdl:
                T.pdl_trigger()
        with T.Kernel(num_adding_blocks(partial_counts, num_groups), threads=THREADS) as block:
            if pdl:
                T.pdl_sync()
            add_slices(partial_counts, counts, itself, block)
            if pdl:
                T.pdl_trigger()

    return group_count


def itself(count: Any) -> Any:
    """What is written for a group with this count: the count."""
    return count
