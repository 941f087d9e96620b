"""``moe.mask_indices_by_tp`` for CUDA: one index a thread."""

from typing import Any

import tilelang.language as T

from kernel_specs._cuda import has_pdl
from tkc.model import Specialization, Target

PASS_CONFIGS: dict[str, object] = {"tl.disable_safe_memory_legalize": True}

_THREADS = 256


def build(specialization: Specialization, target: Target) -> Any:
    """Give the program."""
    dtype, pdl = specialization.str("dtype"), has_pdl(target)
    num_rows, num_columns = T.dynamic("num_rows"), T.dynamic("num_columns")

    @T.prim_func
    def mask_indices_by_tp(
        indices: T.Tensor[(num_rows, num_columns), dtype],
        masked: T.Tensor[(num_rows, num_columns), dtype],
        experts_per_rank: T.int64,
        num_tp_ranks: T.int64,
        tp_rank: T.int64,
    ):
        with T.Kernel(T.ceildiv(num_rows * num_columns, _THREADS), threads=_THREADS) as block:
            given = T.view(indices, (num_rows * num_columns,))
            kept_of = T.view(masked, (num_rows * num_columns,))
            place = T.alloc_var("int32")
            place = block * _THREADS + T.get_thread_binding()
            if pdl:
                T.pdl_sync()
            if place < num_rows * num_columns:
                expert, kept = T.alloc_var("int64"), T.alloc_var("int64")
                expert = T.cast(given[place], "int64")
                kept = -1
                owner = T.truncmod(T.truncdiv(expert, experts_per_rank), num_tp_ranks)
                if expert >= T.int64(0) and owner == tp_rank:
                    kept = expert - tp_rank * experts_per_rank
                    rows = T.truncdiv(kept, num_tp_ranks * experts_per_rank)
                    kept = kept - rows * ((num_tp_ranks - T.int64(1)) * experts_per_rank)
                kept_of[place] = T.cast(kept, dtype)
            if pdl:
                T.pdl_trigger()

    return mask_indices_by_tp
