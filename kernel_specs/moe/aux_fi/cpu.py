"""``moe.aux_fi`` for the CPU: plain loops."""

from typing import Any

import tilelang.cpu.language as T

from tkc.model import Specialization, Target


def build(specialization: Specialization, target: Target) -> Any:
    """Give the program: indices are counted, those of each slice too if there are partial counts, and scaled."""
    num_rows, num_columns = T.dynamic("num_rows"), T.dynamic("num_columns")
    num_partial_counts, num_experts = T.dynamic("num_partial_counts"), T.dynamic("num_experts")

    @T.prim_func
    def aux_fi(
        topk_idx: T.Tensor[(num_rows, num_columns), "int64"],
        partial_counts: T.Tensor[(num_partial_counts,), "int32"],
        fi: T.Tensor[(num_experts,), "float32"],
        divisor: T.int64,
    ):
        with T.Kernel(1) as _:
            counts = T.Tensor((num_experts,), "int32", fi.data)
            num_slices, size = T.alloc_var("int32"), T.alloc_var("int32")
            num_slices = T.max(1, T.truncdiv(num_partial_counts, num_experts))
            size = T.truncdiv(num_rows * num_columns + num_slices - 1, num_slices)
            for expert in T.serial(num_experts):
                counts[expert] = 0
            for i in T.serial(num_partial_counts):
                partial_counts[i] = 0
            for row in T.serial(num_rows):
                for column in T.serial(num_columns):
                    given = T.alloc_var("int64")
                    given = topk_idx[row, column]
                    if given >= T.int64(0) and given < T.cast(num_experts, "int64"):
                        expert, place = T.alloc_var("int32"), T.alloc_var("int32")
                        expert = T.cast(given, "int32")
                        counts[expert] = counts[expert] + 1
                        if num_partial_counts > 0:
                            place = T.truncdiv(row * num_columns + column, size) * num_experts + expert
                            partial_counts[place] = partial_counts[place] + 1
            for expert in T.serial(num_experts):
                scaled = T.cast(T.cast(counts[expert], "int64") * T.cast(num_experts, "int64"), "float32")
                fi[expert] = scaled / T.cast(divisor, "float32")

    return aux_fi
