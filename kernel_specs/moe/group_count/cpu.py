"""``moe.group_count`` for the CPU: plain loops."""

from typing import Any

import tilelang.cpu.language as T

from tkc.model import Specialization, Target


def build(specialization: Specialization, target: Target) -> Any:
    """Give the program: indices are counted, those of each slice too if there are partial counts."""
    num_rows, num_columns = T.dynamic("num_rows"), T.dynamic("num_columns")
    num_partial_counts, num_groups = T.dynamic("num_partial_counts"), T.dynamic("num_groups")

    @T.prim_func
    def group_count(
        group_idx: T.Tensor[(num_rows, num_columns), "int64"],
        partial_counts: T.Tensor[(num_partial_counts,), "int32"],
        counts: T.Tensor[(num_groups,), "int32"],
    ):
        with T.Kernel(1) as _:
            num_slices, size = T.alloc_var("int32"), T.alloc_var("int32")
            num_slices = T.max(1, T.truncdiv(num_partial_counts, num_groups))
            size = T.truncdiv(num_rows * num_columns + num_slices - 1, num_slices)
            for group in T.serial(num_groups):
                counts[group] = 0
            for i in T.serial(num_partial_counts):
                partial_counts[i] = 0
            for row in T.serial(num_rows):
                for column in T.serial(num_columns):
                    given = T.alloc_var("int64")
                    given = group_idx[row, column]
                    if given >= T.int64(0) and given < T.cast(num_groups, "int64"):
                        group, place = T.alloc_var("int32"), T.alloc_var("int32")
                        group = T.cast(given, "int32")
                        counts[group] = counts[group] + 1
                        if num_partial_counts > 0:
                            place = T.truncdiv(row * num_columns + column, size) * num_groups + group
                            partial_counts[place] = partial_counts[place] + 1

    return group_count
