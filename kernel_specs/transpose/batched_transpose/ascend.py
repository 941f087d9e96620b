"""`batched_transpose` for Ascend: square tiles through the unified buffer, one element a thread.

Lowered, never yet run on a device. Any shape and any row stride: edges are predicated.
"""

from typing import Any

import tilelang.ascend.language as T

from kernel_specs.transpose.batched_transpose.spec import DTYPES
from tkc.model import Specialization, Target

_THREADS = 1024
_SIDE = 64
_MAX_BLOCKS = 65535


def build(specialization: Specialization, target: Target) -> Any:
    size_bytes = specialization.int("size_bytes")
    dtype = DTYPES[size_bytes].value
    padding = 32 // size_bytes

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
        tiles_m, tiles_n = T.ceildiv(num_rows, _SIDE), T.ceildiv(num_columns, _SIDE)
        num_tiles = tiles_m * tiles_n * num_batches
        num_blocks = T.min(num_tiles, _MAX_BLOCKS)
        with T.Kernel(num_blocks) as block:
            elements = T.alloc_shared((_SIDE, _SIDE + padding), dtype)
            for step in T.serial(T.truncdiv(num_tiles - block + num_blocks - 1, num_blocks)):
                index = block + step * num_blocks
                batch, tile = T.truncdiv(index, tiles_m * tiles_n), T.truncmod(index, tiles_m * tiles_n)
                m0, n0 = T.truncdiv(tile, tiles_n) * _SIDE, T.truncmod(tile, tiles_n) * _SIDE
                with T.SimtVF(threads=_THREADS):
                    for i, j in T.Parallel(_SIDE, _SIDE):
                        if m0 + i < num_rows and n0 + j < num_columns:
                            elements[i, j] = x[batch, m0 + i, n0 + j]
                    for j, i in T.Parallel(_SIDE, _SIDE):
                        if m0 + i < num_rows and n0 + j < num_columns:
                            out[batch, n0 + j, m0 + i] = elements[i, j]

    return batched_transpose
