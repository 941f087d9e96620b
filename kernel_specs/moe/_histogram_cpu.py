"""How often each group occurs among indices, for the CPU: plain loops."""

from typing import Any

import tilelang.cpu.language as T


@T.macro
def count(indices: Any, partial_counts: Any, counts: Any) -> None:
    """Count a matrix of indices into `counts`, and each slice of it into its part of `partial_counts`, if there is any.

    What is no group is not counted.
    """
    num_groups, num_partial_counts = counts.shape[0], partial_counts.shape[0]
    num_slices, size = T.alloc_var("int32"), T.alloc_var("int32")
    num_slices = T.max(1, T.truncdiv(num_partial_counts, num_groups))
    size = T.truncdiv(indices.shape[0] * indices.shape[1] + num_slices - 1, num_slices)
    for group in T.serial(num_groups):
        counts[group] = 0
    for i in T.serial(num_partial_counts):
        partial_counts[i] = 0
    for row in T.serial(indices.shape[0]):
        for column in T.serial(indices.shape[1]):
            given = T.alloc_var("int64")
            given = indices[row, column]
            if given >= T.int64(0) and given < T.cast(num_groups, "int64"):
                group, place = T.alloc_var("int32"), T.alloc_var("int32")
                group = T.cast(given, "int32")
                counts[group] = counts[group] + 1
                if num_partial_counts > 0:
                    place = T.truncdiv(row * indices.shape[1] + column, size) * num_groups + group
                    partial_counts[place] = partial_counts[place] + 1
