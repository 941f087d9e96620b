"""``moe.group_count`` for the CPU: plain loops."""

from typing import Any

import tilelang.cpu.language as T

from kernel_specs.moe._histogram_cpu import count
from tkc.model import Specialization, Target


def build(specialization: Specialization, target: Target) -> Any:
    """Give the program: indices are counted."""
    num_rows, num_columns = T.dynamic("num_rows"), T.dynamic("num_columns")
    num_partial_counts, num_groups = T.dynamic("num_partial_counts"), T.dynamic("num_groups")

    @T.prim_func
    def group_count(
        group_idx: T.Tensor[(num_rows, num_columns), "int64"],
        partial_counts: T.Tensor[(num_partial_counts,), "int32"],
        counts: T.Tensor[(num_groups,), "int32"],
    ):
        with T.Kernel(1) as _:
            count(group_idx, partial_counts, counts)

    return group_count
