"""``moe.reduce_fused`` for CUDA: a thread sums 16 bytes of the rows of eight picks at a time.

It has the loads of all eight in flight before it adds the first. Where an address or a stride is no multiple
of 16 bytes, or the row no whole number of vectors, it loads and stores single elements instead.
"""

from dataclasses import dataclass
from typing import Any

import tilelang.language as T

from kernel_specs._cuda import has_pdl
from kernel_specs.moe.reduce_fused.spec import out_dtype
from tkc.model import DType, Specialization, Target

PASS_CONFIGS: dict[str, object] = {"tl.disable_safe_memory_legalize": True}

_VECTOR = 16


@dataclass(frozen=True)
class Config:
    """Tuning choices.

    Attributes:
        threads: of a block.
        picks: rows of which a thread has loads in flight.
    """

    threads: int = 128
    picks: int = 8


DEFAULT = Config()


def build(specialization: Specialization, target: Target, config: Config = DEFAULT) -> Any:
    """Give the program, which serves any hidden size and number of picks."""
    dtype, to = specialization.str("dtype"), out_dtype(specialization)
    size_bytes, to_bytes = DType(dtype).size_bytes, DType(to).size_bytes
    width, threads, picks, pdl = _VECTOR // DType(dtype).size_bytes, config.threads, config.picks, has_pdl(target)
    num_positions, hidden, num_tokens = T.dynamic("num_positions"), T.dynamic("hidden"), T.dynamic("num_tokens")
    num_scaled, num_weighted, num_weights = T.dynamic("num_scaled"), T.dynamic("num_weighted"), T.dynamic("num_weights")
    num_topk, num_sf, x_stride = T.dynamic("num_topk"), T.dynamic("num_sf"), T.dynamic("x_stride", "int64")
    chunks = T.ceildiv(hidden, width * threads)

    @T.prim_func
    def reduce_fused(
        x: T.StridedTensor[(num_positions, hidden), (x_stride, 1), dtype],
        x_sf: T.Tensor[(num_scaled,), "float32"],
        topk_weights: T.Tensor[(num_weighted, num_weights), "float32"],
        token_topk_to_pos: T.Tensor[(num_tokens, num_topk), "int32"],
        sf: T.Tensor[(num_sf,), "float32"],
        out: T.Tensor[(num_tokens, hidden), to],
    ):
        with T.Kernel(num_tokens * chunks, threads=threads) as block:
            token, column = T.alloc_var("int32"), T.alloc_var("int32")
            token = T.truncdiv(block, chunks)
            column = (T.truncmod(block, chunks) * threads + T.get_thread_binding()) * width
            misaligned = T.alloc_var("int64")
            misaligned = address(x) | (x_stride | T.cast(hidden, "int64")) * size_bytes
            misaligned |= address(out) * (_VECTOR // (width * to_bytes))
            rows = T.alloc_local((picks, width), dtype)
            factors, positions = T.alloc_local((picks,), "float32"), T.alloc_local((picks,), "int32")
            sums, result = T.alloc_local((width,), "float32"), T.alloc_local((width,), to)
            if pdl:
                T.pdl_sync()
            if column < hidden:
                for v in T.unroll(width):
                    sums[v] = 0
                for step in T.serial(T.ceildiv(num_topk, picks)):
                    for k in T.unroll(picks):
                        pick = step * picks + k
                        positions[k] = -1
                        if pick < num_topk:
                            positions[k] = token_topk_to_pos[token, pick]
                            if positions[k] >= num_positions:
                                positions[k] = -1
                    for k in T.unroll(picks):
                        pick = step * picks + k
                        factors[k] = 1
                        if positions[k] >= 0:
                            if misaligned % _VECTOR == 0:
                                rows[k, 0:width] = T.reinterpret(T.ldg128(x[positions[k], column]), f"{dtype}x{width}")
                            else:
                                for v in T.unroll(width):
                                    if column + v < hidden:
                                        rows[k, v] = x[positions[k], column + v]
                            if token < num_weighted and pick < num_weights:
                                factors[k] = topk_weights[token, pick]
                            if positions[k] < num_scaled:
                                factors[k] = T.fmul(factors[k], x_sf[positions[k]])
                    for k in T.unroll(picks):
                        if positions[k] >= 0:
                            for v in T.unroll(width):
                                sums[v] = T.fma(T.cast(rows[k, v], "float32"), factors[k], sums[v])
                if num_sf > 0:
                    scale = T.alloc_var("float32")
                    scale = sf[T.if_then_else(num_sf > 1, token, 0)]
                    for v in T.unroll(width):
                        sums[v] = T.fmul(sums[v], scale)
                for v in T.vectorized(width):
                    result[v] = T.Cast(to, sums[v])
                if misaligned % _VECTOR == 0:
                    store(out, token, column, result, width * to_bytes, width)
                else:
                    for v in T.unroll(width):
                        if column + v < hidden:
                            out[token, column + v] = result[v]
            if pdl:
                T.pdl_trigger()

    return reduce_fused


def address(tensor: Any) -> Any:
    """Where a tensor begins."""
    return T.call_extern("int64", "__cvta_generic_to_global", T.address_of(tensor[0, 0]))


@T.macro
def store(out: Any, token: Any, column: Any, result: Any, size_bytes: int, width: int) -> None:
    """Store a vector of 4, 8 or 16 bytes."""
    if size_bytes == 16:
        T.stg128(out[token, column], T.reinterpret(result[0:width], "uint32x4"))
    elif size_bytes == 8:
        T.stg64(out[token, column], T.reinterpret(result[0:width], "uint32x2"))
    else:
        T.stg32(out[token, column], T.reinterpret(result[0:width], "uint32"))
