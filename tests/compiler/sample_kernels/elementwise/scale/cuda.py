"""One block a row."""

from typing import Any

import tilelang.language as T

from sample_kernels.elementwise._helpers import ROW_THREADS
from tkc.model import Specialization, Target

PASS_CONFIGS = {"tl.disable_warp_specialized": True}


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
        with T.Kernel(rows, threads=ROW_THREADS) as row:
            T.pdl_sync()
            T.device_assert(factor == factor)
            for i in T.Parallel(width):
                out[row, i] = T.cast(T.cast(x[row, i], "float32") * factor + T.cast(bias, "float32"), dtype)
            T.pdl_trigger()

    return scale
