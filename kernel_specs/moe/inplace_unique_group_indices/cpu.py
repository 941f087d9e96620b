"""``moe.inplace_unique_group_indices`` for the CPU: plain loops."""

from typing import Any

import tilelang.cpu.language as T

from tkc.model import Specialization, Target


def build(specialization: Specialization, target: Target) -> Any:
    """Give the program."""
    num_tokens, num_topk = T.dynamic("num_tokens"), T.dynamic("num_topk")
    indices_stride = T.dynamic("indices_stride", "int64")

    @T.prim_func
    def inplace_unique_group_indices(
        group_indices: T.StridedTensor[(num_tokens, num_topk), (indices_stride, 1), "int64"],
        num_groups: T.int32,
    ):
        with T.Kernel(num_tokens) as token:
            for k in T.serial(num_topk):
                given = T.alloc_var("int64")
                given = group_indices[token, k]
                if given >= T.int64(0) and given < T.cast(num_groups, "int64"):
                    for j in T.serial(k):
                        if group_indices[token, j] == given:
                            group_indices[token, k] = T.int64(-1)

    return inplace_unique_group_indices
