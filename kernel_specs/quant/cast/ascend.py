"""`cast` for Ascend: a block takes chunk after chunk, one element a thread; the hardware's own conversions.

Lowered, never yet run on a device. Rounds to nearest even only.
"""

from typing import Any

import tilelang.ascend.language as T

from tkc.errors import TargetError
from tkc.model import Specialization, Target

_THREADS = 1024
_CHUNK = 8192
_MAX_BLOCKS = 65535


def build(specialization: Specialization, target: Target) -> Any:
    x_dtype, y_dtype = specialization.str("x_dtype"), specialization.str("y_dtype")
    if specialization["stochastic"]:
        raise TargetError(f"{specialization}: target {target} has no stochastic rounding; cast without it")
    num_rows, num_columns = T.dynamic("num_rows", "int64"), T.dynamic("num_columns", "int64")
    numel = num_rows * num_columns

    @T.prim_func
    def cast(x: T.Tensor[(num_rows, num_columns), x_dtype], y: T.Tensor[(num_rows, num_columns), y_dtype]):
        elements, results = T.view(x, (numel,)), T.view(y, (numel,))
        num_chunks = T.ceildiv(numel, _CHUNK)
        num_blocks = T.cast(T.min(num_chunks, _MAX_BLOCKS), "int32")
        with T.Kernel(num_blocks) as block:
            for step in T.serial(T.truncdiv(num_chunks - block + num_blocks - 1, num_blocks)):
                start = T.cast(block + step * num_blocks, "int64") * _CHUNK
                with T.SimtVF(threads=_THREADS):
                    for i in T.Parallel(_CHUNK):
                        if start + i < numel:
                            results[start + i] = T.cast(elements[start + i], y_dtype)

    return cast
