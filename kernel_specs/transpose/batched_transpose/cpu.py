"""`batched_transpose` for CPUs: square blocks, so that both sides stay in the cache."""

from typing import Any

import tilelang.cpu.language as T

from kernel_specs.transpose.batched_transpose.spec import DTYPES
from tkc.model import Specialization, Target

_SIDE = 32


def build(specialization: Specialization, target: Target) -> Any:
    dtype = DTYPES[specialization.int("size_bytes")].value

    num_batches, num_rows, num_columns = (
        T.dynamic("num_batches"),
        T.dynamic("num_rows"),
        T.dynamic("num_columns"),
    )
    stride_batch, stride_row = T.dynamic("stride_batch", "int64"), T.dynamic("stride_row", "int64")

    @T.prim_func
    def batched_transpose(
        x: T.StridedTensor[(num_batches, num_rows, num_columns), (stride_batch, stride_row, 1), dtype],
        out: T.Tensor[(num_batches, num_columns, num_rows), dtype],
    ):
        with T.Kernel(T.ceildiv(num_columns, _SIDE), T.ceildiv(num_rows, _SIDE), num_batches) as (
            bn,
            bm,
            batch,
        ):
            for j, i in T.grid(_SIDE, _SIDE):
                if bm * _SIDE + i < num_rows and bn * _SIDE + j < num_columns:
                    out[batch, bn * _SIDE + j, bm * _SIDE + i] = x[batch, bm * _SIDE + i, bn * _SIDE + j]

    return batched_transpose
