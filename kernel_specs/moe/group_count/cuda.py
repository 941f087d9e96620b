"""``moe.group_count`` for CUDA: slices counted in shared memory, then added."""

from typing import Any

import tilelang.language as T

from kernel_specs._cuda import has_pdl
from kernel_specs.moe._histogram import THREADS, add_counts, count_slice, num_reducing_blocks
from tkc.model import Specialization, Target

PASS_CONFIGS: dict[str, object] = {"tl.disable_safe_memory_legalize": True}


def build(specialization: Specialization, target: Target) -> Any:
    """Give the program: one kernel counts, one adds."""
    pdl = has_pdl(target)
    num_indices, num_slices, num_groups = T.dynamic("num_indices"), T.dynamic("num_slices"), T.dynamic("num_groups")

    @T.prim_func
    def group_count(
        group_idx: T.Tensor[(num_indices,), "int64"],
        partial_counts: T.Tensor[(num_slices, num_groups), "int32"],
        counts: T.Tensor[(num_groups,), "int32"],
    ):
        with T.Kernel(num_slices, threads=THREADS) as block:
            if pdl:
                T.pdl_sync()
            count_slice(group_idx, partial_counts, block, THREADS)
            if pdl:
                T.pdl_trigger()
        with T.Kernel(num_reducing_blocks(num_groups), threads=THREADS) as block:
            if pdl:
                T.pdl_sync()
            total = T.alloc_var("int32")
            total = add_counts(partial_counts, block, THREADS)
            if T.get_thread_binding() < 32 and block * 32 + T.get_thread_binding() < num_groups:
                counts[block * 32 + T.get_thread_binding()] = total
            if pdl:
                T.pdl_trigger()

    return group_count
