"""`apply_rotary` for CPUs: head by head, pair by pair."""

from typing import Any

import tilelang.cpu.language as T

from tkc.model import Specialization, Target


def build(specialization: Specialization, target: Target) -> Any:
    dtype, index_dtype = specialization.str("dtype"), specialization["positions"]
    interleaved = bool(specialization["interleaved"])

    num_batches, num_tokens, head_dim = T.dynamic("num_batches"), T.dynamic("num_tokens"), T.dynamic("head_dim")
    num_query_heads, num_key_heads = T.dynamic("num_query_heads"), T.dynamic("num_key_heads")
    num_positions, cache_stride = T.dynamic("num_positions"), T.dynamic("cache_stride", "int64")
    query_strides = tuple(T.dynamic(f"query_stride_{of}", "int64") for of in ("batch", "token", "head"))
    key_strides = tuple(T.dynamic(f"key_stride_{of}", "int64") for of in ("batch", "token", "head"))
    index_strides = tuple(T.dynamic(f"positions_stride_{of}", "int64") for of in ("batch", "token"))

    Query = T.StridedTensor[(num_batches, num_tokens, num_query_heads, head_dim), (*query_strides, 1), dtype]
    Key = T.StridedTensor[(num_batches, num_tokens, num_key_heads, head_dim), (*key_strides, 1), dtype]
    Cache = T.StridedTensor[(num_positions, head_dim), (cache_stride, 1), "float32"]
    Positions = T.StridedTensor[(num_batches, num_tokens), index_strides, index_dtype or "int32"]

    @T.macro
    def rotate(x, batch, token, row, cache, sine_sign):
        half = head_dim // 2
        for head, j in T.grid(x.shape[2], half):
            cosine, sine, a, b = (T.alloc_var("float32") for _ in range(4))
            cosine, sine = 0.0, 0.0
            if row >= 0 and row < num_positions:
                cosine = cache[row, j]
                sine = cache[row, half + j]
            sine = sine * sine_sign
            first, second = (2 * j, 2 * j + 1) if interleaved else (j, half + j)
            a = T.Cast("float32", x[batch, token, head, first])
            b = T.Cast("float32", x[batch, token, head, second])
            x[batch, token, head, first] = T.Cast(dtype, _fma(a, cosine, -(b * sine)))
            x[batch, token, head, second] = T.Cast(dtype, _fma(a, sine, b * cosine))

    @T.macro
    def rotate_both(query, key, cache, positions, rotate_key, sine_sign, seqlen_offset):
        with T.Kernel(num_tokens, num_batches) as (token, batch):
            row = T.alloc_var("int64")
            row = seqlen_offset + (token if index_dtype is None else T.Cast("int64", positions[batch, token]))
            rotate(query, batch, token, row, cache, sine_sign)
            if rotate_key != 0:
                rotate(key, batch, token, row, cache, sine_sign)

    if index_dtype is None:

        @T.prim_func
        def apply_rotary(
            query: Query,
            key: Key,
            cos_sin_cache: Cache,
            rotate_key: T.int32,
            sine_sign: T.float32,
            seqlen_offset: T.int64,
        ):
            rotate_both(query, key, cos_sin_cache, None, rotate_key, sine_sign, seqlen_offset)

    else:

        @T.prim_func
        def apply_rotary(
            query: Query,
            key: Key,
            cos_sin_cache: Cache,
            positions: Positions,
            rotate_key: T.int32,
            sine_sign: T.float32,
            seqlen_offset: T.int64,
        ):
            rotate_both(query, key, cos_sin_cache, positions, rotate_key, sine_sign, seqlen_offset)

    return apply_rotary


def _fma(a: Any, b: Any, c: Any) -> Any:
    """``a * b + c``, rounded once; C's fmaf, which needs no such instruction."""
    return T.call_extern("float32", "fmaf", a, b, c)
