"""``moe.mask_indices_by_tp`` for the CPU: a plain loop."""

from typing import Any

import tilelang.cpu.language as T

from tkc.model import Specialization, Target


def build(specialization: Specialization, target: Target) -> Any:
    """Give the program."""
    dtype, num_rows, num_columns = specialization.str("dtype"), T.dynamic("num_rows"), T.dynamic("num_columns")

    @T.prim_func
    def mask_indices_by_tp(
        indices: T.Tensor[(num_rows, num_columns), dtype],
        masked: T.Tensor[(num_rows, num_columns), dtype],
        experts_per_rank: T.int64,
        num_tp_ranks: T.int64,
        tp_rank: T.int64,
    ):
        with T.Kernel(num_columns, num_rows) as (column, row):
            expert, kept = T.alloc_var("int64"), T.alloc_var("int64")
            expert = T.cast(indices[row, column], "int64")
            kept = -1
            owner = T.truncmod(T.truncdiv(expert, experts_per_rank), num_tp_ranks)
            if expert >= T.int64(0) and owner == tp_rank:
                kept = expert - tp_rank * experts_per_rank
                rows = T.truncdiv(kept, num_tp_ranks * experts_per_rank)
                kept = kept - rows * ((num_tp_ranks - T.int64(1)) * experts_per_rank)
            masked[row, column] = T.cast(kept, dtype)

    return mask_indices_by_tp
