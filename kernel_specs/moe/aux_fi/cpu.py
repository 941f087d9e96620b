"""``moe.aux_fi`` for the CPU: plain loops."""

from typing import Any

import tilelang.cpu.language as T

from kernel_specs.moe._histogram_cpu import count
from tkc.model import Specialization, Target


def build(specialization: Specialization, target: Target) -> Any:
    """Give the program: indices are counted, then the counts are scaled."""
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
            count(topk_idx, partial_counts, counts)
            for expert in T.serial(num_experts):
                scaled = T.cast(T.cast(counts[expert], "int64") * T.cast(num_experts, "int64"), "float32")
                fi[expert] = scaled / T.cast(divisor, "float32")

    return aux_fi
