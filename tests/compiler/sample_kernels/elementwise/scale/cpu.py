"""A plain loop."""

from typing import Any

import tilelang.language as T

from tkc.model import Specialization, Target


def build(specialization: Specialization, target: Target) -> Any:
    width, dtype = specialization.int("width"), specialization.str("dtype")
    rows, stride = T.dynamic("num_rows"), T.dynamic("stride_x")

    @T.prim_func
    def scale(
        x: T.StridedTensor[(rows, width), (stride, 1), dtype],
        out: T.Tensor[(rows, width), dtype],
        factor: T.float32,
        bias: T.int32,
    ):
        with T.Kernel(rows) as row:
            for i in T.serial(width):
                out[row, i] = T.cast(T.cast(x[row, i], "float32") * factor + T.cast(bias, "float32"), dtype)

    return scale
