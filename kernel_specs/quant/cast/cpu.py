"""`cast` for CPUs: one element after the other, narrow floats as integers."""

from typing import Any

import tilelang.cpu.language as T

from kernel_specs.quant import _cpu, _expressions
from tkc.model import Specialization, Target

_CHUNK = 1024


def build(specialization: Specialization, target: Target) -> Any:
    x_dtype, y_dtype = specialization.str("x_dtype"), specialization.str("y_dtype")
    num_rows, num_columns = T.dynamic("num_rows", "int64"), T.dynamic("num_columns", "int64")
    numel = num_rows * num_columns

    def codes(tensor: Any) -> Any:
        return _cpu.codes(T.Tensor((numel,), tensor.dtype, tensor.data))

    @T.prim_func
    def cast(x: T.Tensor[(num_rows, num_columns), x_dtype], y: T.Tensor[(num_rows, num_columns), y_dtype]):
        with T.Kernel(T.ceildiv(numel, _CHUNK)) as chunk:
            start = T.alloc_var("int64")
            start = T.cast(chunk, "int64") * _CHUNK
            value = T.alloc_var("float32")
            if specialization["stochastic"]:
                _round_stochastically(codes(x), codes(y), x_dtype, y_dtype, start, numel)
            else:
                for i in T.serial(T.min(_CHUNK, numel - start)):
                    value = _cpu.decoded(codes(x)[start + i], x_dtype)
                    codes(y)[start + i] = _cpu.encoded(value, y_dtype)

    return cast


@T.macro
def _round_stochastically(x, y, x_dtype, y_dtype, start, numel):
    values, hashed = T.alloc_local((4,), "float32"), T.alloc_var("uint32")
    for four in T.serial(T.min(_CHUNK, numel - start) // 4):
        for i in T.serial(4):
            values[i] = _cpu.decoded(x[start + 4 * four + i], x_dtype)
        hashed = _expressions.stochastic_hash(values, 0, start // 4 + four)
        _expressions.round_four(values, 0, hashed, "e4m3" if y_dtype == "float8_e4m3fn" else "bfloat16")
        for i in T.serial(4):
            y[start + 4 * four + i] = _cpu.encoded(values[i], y_dtype)
