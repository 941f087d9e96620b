"""``moe.aux_fi`` for CUDA: slices counted in shared memory, then added and scaled."""

from typing import Any

import tilelang.language as T

from kernel_specs._cuda import has_pdl
from kernel_specs.moe._histogram import THREADS, add_counts, count_slice, num_reducing_blocks
from tkc.model import Specialization, Target

PASS_CONFIGS: dict[str, object] = {"tl.disable_safe_memory_legalize": True}


def build(specialization: Specialization, target: Target) -> Any:
    """Give the program: one kernel counts, one adds and scales."""
    pdl = has_pdl(target)
    num_indices, num_slices, num_experts = T.dynamic("num_indices"), T.dynamic("num_slices"), T.dynamic("num_experts")

    @T.prim_func
    def aux_fi(
        topk_idx: T.Tensor[(num_indices,), "int64"],
        partial_counts: T.Tensor[(num_slices, num_experts), "int32"],
        fi: T.Tensor[(num_experts,), "float32"],
        divisor: T.int64,
    ):
        with T.Kernel(num_slices, threads=THREADS) as block:
            if pdl:
                T.pdl_sync()
            count_slice(topk_idx, partial_counts, block, THREADS)
            if pdl:
                T.pdl_trigger()
        with T.Kernel(num_reducing_blocks(num_experts), threads=THREADS) as block:
            if pdl:
                T.pdl_sync()
            total = T.alloc_var("int32")
            total = add_counts(partial_counts, block, THREADS)
            if T.get_thread_binding() < 32 and block * 32 + T.get_thread_binding() < num_experts:
                scaled = T.cast(T.cast(total, "int64") * T.cast(num_experts, "int64"), "float32")
                fi[block * 32 + T.get_thread_binding()] = scaled / T.cast(divisor, "float32")
            if pdl:
                T.pdl_trigger()

    return aux_fi
