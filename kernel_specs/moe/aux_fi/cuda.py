"""``moe.aux_fi`` for CUDA: slices counted in shared memory, then added and scaled."""

from functools import partial
from typing import Any

import tilelang.language as T

from kernel_specs._cuda import has_pdl
from kernel_specs.moe._histogram import THREADS, add_slices, count_slice, num_adding_blocks, num_counting_blocks
from tkc.model import Specialization, Target

PASS_CONFIGS: dict[str, object] = {"tl.disable_safe_memory_legalize": True}


def build(specialization: Specialization, target: Target) -> Any:
    """Give the program: one kernel counts, one adds and scales."""
    pdl = has_pdl(target)
    num_rows, num_columns = T.dynamic("num_rows"), T.dynamic("num_columns")
    num_partial_counts, num_experts = T.dynamic("num_partial_counts"), T.dynamic("num_experts")

    @T.prim_func
    def aux_fi(
        topk_idx: T.Tensor[(num_rows, num_columns), "int64"],
        partial_counts: T.Tensor[(num_partial_counts,), "int32"],
        fi: T.Tensor[(num_experts,), "float32"],
        divisor: T.int64,
    ):
        with T.Kernel(num_counting_blocks(partial_counts, num_experts), threads=THREADS) as block:
            if pdl:
                T.pdl_sync()
            count_slice(topk_idx, partial_counts, fi, partial(share, num_experts, divisor), block)
            if pdl:
                T.pdl_trigger()
        with T.Kernel(num_adding_blocks(partial_counts, num_experts), threads=THREADS) as block:
            if pdl:
                T.pdl_sync()
            add_slices(partial_counts, fi, partial(share, num_experts, divisor), block)
            if pdl:
                T.pdl_trigger()

    return aux_fi


def share(num_experts: Any, divisor: Any, count: Any) -> Any:
    """The relative load of an expert that was picked `count` times."""
    return T.cast(T.cast(count, "int64") * T.cast(num_experts, "int64"), "float32") / T.cast(divisor, "float32")
