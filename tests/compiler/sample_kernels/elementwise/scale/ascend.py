"""One core a row, by its SIMT units."""

from typing import Any

import tilelang.ascend.language as T

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
        with T.Kernel(rows) as row, T.SimtVF(threads=width):
            thread = T.get_thread_binding()
            out[row, thread] = T.cast(T.cast(x[row, thread], "float32") * factor + T.cast(bias, "float32"), dtype)

    return scale
