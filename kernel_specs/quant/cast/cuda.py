"""`cast` for CUDA: 16-byte accesses on the wider side, several of them in flight, no shared memory.

A tensor that does not begin at a multiple of 16 bytes, and the last elements of any, are moved one by one.
"""

from dataclasses import dataclass
from typing import Any

import tilelang.language as T

from kernel_specs._cuda import has_pdl
from kernel_specs.quant import _cuda, _expressions
from tkc.model import DType, Specialization, Target

PASS_CONFIGS = {"tl.disable_safe_memory_legalize": True}
"""Every access is guarded by hand; the pass would guard each element of a vector on its own."""

_VECTOR_BYTES = 16


@dataclass(frozen=True, slots=True)
class Config:
    """How threads share the elements.

    Attributes:
        vectors: vectors of a thread, loaded together.
        threads: of a block.
        wide_bytes: bytes of a vector on its wider side.
    """

    vectors: int = 2
    threads: int = 128
    wide_bytes: int = _VECTOR_BYTES


DEFAULT = Config()


def build(specialization: Specialization, target: Target, config: Config = DEFAULT) -> Any:
    x_dtype, y_dtype = specialization.str("x_dtype"), specialization.str("y_dtype")
    stochastic = bool(specialization["stochastic"])
    vector = max(4, config.wide_bytes // max(DType(x_dtype).size_bytes, DType(y_dtype).size_bytes))
    vectors, threads, pdl = config.vectors, config.threads, has_pdl(target)
    num_rows, num_columns = T.dynamic("num_rows", "int64"), T.dynamic("num_columns", "int64")
    numel = num_rows * num_columns

    @T.prim_func
    def cast(x: T.Tensor[(num_rows, num_columns), x_dtype], y: T.Tensor[(num_rows, num_columns), y_dtype]):
        with T.Kernel(T.ceildiv(numel, threads * vectors * vector), threads=threads) as block:
            first = T.alloc_var("int64")  # of the thread's vectors; they are `threads` vectors apart
            first = T.cast(block, "int64") * (threads * vectors) + T.get_thread_binding()
            aligned = T.alloc_var("bool")
            aligned = _cuda.is_aligned(x, y)
            raw, cooked = T.alloc_local((vectors, vector), x_dtype), T.alloc_local((vectors, vector), y_dtype)
            if pdl:
                T.pdl_sync()
            for u in T.unroll(vectors):
                _load(T.view(x, (numel,)), aligned, first + u * threads, raw, u)
            for u in T.unroll(vectors):
                if stochastic:
                    _round_stochastically(raw, cooked, u, first + u * threads)
                else:
                    for v in T.vectorized(vector):
                        cooked[u, v] = T.cast(raw[u, v], y_dtype)
                _store(T.view(y, (numel,)), aligned, first + u * threads, cooked, u)
            if pdl:
                T.pdl_trigger()

    return cast


@T.macro
def _load(x, aligned, index, raw, u):
    vector = raw.shape[1]
    if aligned and (index + 1) * vector <= x.shape[0]:
        for v in T.vectorized(vector):
            raw[u, v] = x[index * vector + v]
    else:
        for v in T.unroll(vector):
            raw[u, v] = T.cast(0, raw.dtype)
            if index * vector + v < x.shape[0]:
                raw[u, v] = x[index * vector + v]


@T.macro
def _store(y, aligned, index, cooked, u):
    vector = cooked.shape[1]
    if aligned and (index + 1) * vector <= y.shape[0]:
        for v in T.vectorized(vector):
            y[index * vector + v] = cooked[u, v]
    else:
        for v in T.unroll(vector):
            if index * vector + v < y.shape[0]:
                y[index * vector + v] = cooked[u, v]


@T.macro
def _round_stochastically(raw, cooked, u, vector_index):
    vector, fmt = raw.shape[1], "e4m3" if cooked.dtype == "float8_e4m3fn" else "bfloat16"
    values, hashed = T.alloc_local((vector,), "float32"), T.alloc_var("uint32")
    for v in T.vectorized(vector):
        values[v] = T.cast(raw[u, v], "float32")
    for four in T.unroll(vector // 4):
        hashed = _expressions.stochastic_hash(values, 4 * four, vector_index * (vector // 4) + four)
        _expressions.round_four(values, 4 * four, hashed, fmt)
    for v in T.vectorized(vector):
        cooked[u, v] = T.cast(values[v], cooked.dtype)
