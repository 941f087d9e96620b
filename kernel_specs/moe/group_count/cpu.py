"""``moe.group_count`` for the CPU: plain loops."""

from typing import Any

import tilelang.cpu.language as T

from tkc.model import Specialization, Target


def build(specialization: Specialization, target: Target) -> Any:
    """Give the program: slices are counted, then added."""
    num_indices, num_slices, num_groups = T.dynamic("num_indices"), T.dynamic("num_slices"), T.dynamic("num_groups")

    @T.prim_func
    def group_count(
        group_idx: T.Tensor[(num_indices,), "int64"],
        partial_counts: T.Tensor[(num_slices, num_groups), "int32"],
        counts: T.Tensor[(num_groups,), "int32"],
    ):
        with T.Kernel(1) as _:
            size = T.alloc_var("int32")
            size = T.truncdiv(num_indices + num_slices - 1, num_slices)
            for part in T.serial(num_slices):
                for group in T.serial(num_groups):
                    partial_counts[part, group] = 0
                for i in T.serial(T.min(size, num_indices - part * size)):
                    given = T.alloc_var("int64")
                    given = group_idx[part * size + i]
                    if given >= T.int64(0) and given < T.cast(num_groups, "int64"):
                        group = T.alloc_var("int32")
                        group = T.cast(given, "int32")
                        partial_counts[part, group] = partial_counts[part, group] + 1
            for group in T.serial(num_groups):
                total = T.alloc_var("int32")
                total = 0
                for part in T.serial(num_slices):
                    total += partial_counts[part, group]
                counts[group] = total

    return group_count
