"""``moe.aux_fi`` for the CPU: plain loops."""

from typing import Any

import tilelang.cpu.language as T

from tkc.model import Specialization, Target


def build(specialization: Specialization, target: Target) -> Any:
    """Give the program: slices are counted, then added and scaled."""
    num_indices, num_slices, num_experts = T.dynamic("num_indices"), T.dynamic("num_slices"), T.dynamic("num_experts")

    @T.prim_func
    def aux_fi(
        topk_idx: T.Tensor[(num_indices,), "int64"],
        partial_counts: T.Tensor[(num_slices, num_experts), "int32"],
        fi: T.Tensor[(num_experts,), "float32"],
        divisor: T.int64,
    ):
        with T.Kernel(1) as _:
            size = T.alloc_var("int32")
            size = T.truncdiv(num_indices + num_slices - 1, num_slices)
            for part in T.serial(num_slices):
                for expert in T.serial(num_experts):
                    partial_counts[part, expert] = 0
                for i in T.serial(T.min(size, num_indices - part * size)):
                    given = T.alloc_var("int64")
                    given = topk_idx[part * size + i]
                    if given >= T.int64(0) and given < T.cast(num_experts, "int64"):
                        expert = T.alloc_var("int32")
                        expert = T.cast(given, "int32")
                        partial_counts[part, expert] = partial_counts[part, expert] + 1
            for expert in T.serial(num_experts):
                total = T.alloc_var("int32")
                total = 0
                for part in T.serial(num_slices):
                    total += partial_counts[part, expert]
                scaled = T.cast(T.cast(total, "int64") * T.cast(num_experts, "int64"), "float32")
                fi[expert] = scaled / T.cast(divisor, "float32")

    return aux_fi
