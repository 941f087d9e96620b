"""The signature of `apply_rotary`'s programs, which is the same in every dialect."""

from typing import Any

import tilelang.language.common as T

from tkc.model import Specialization


class Axes:
    """Sizes and strides that are free at launch."""

    def __init__(self) -> None:
        self.num_batches, self.num_tokens, self.head_dim = map(T.dynamic, ("num_batches", "num_tokens", "head_dim"))
        self.num_query_heads, self.num_key_heads = T.dynamic("num_query_heads"), T.dynamic("num_key_heads")
        self.num_positions, self.cache_stride = T.dynamic("num_positions"), T.dynamic("cache_stride", "int64")

    def rows(self, name: str, num_heads: Any, dtype: str) -> Any:
        """The type of the heads of `name`, with any strides but the last."""
        strides = (T.dynamic(f"{name}_stride_{of}", "int64") for of in ("batch", "token", "head"))
        return T.StridedTensor[(self.num_batches, self.num_tokens, num_heads, self.head_dim), (*strides, 1), dtype]


def program(specialization: Specialization, axes: Axes, body: Any) -> Any:
    """A program with the arguments of the spec, around a macro.

    `body` takes query, key, cache, positions (None without), rotate_key, sine_sign and seqlen_offset.
    """
    dtype, index_dtype = specialization.str("dtype"), specialization["positions"]
    Query = axes.rows("query", axes.num_query_heads, dtype)
    Key = axes.rows("key", axes.num_key_heads, dtype)
    Cache = T.StridedTensor[(axes.num_positions, axes.head_dim), (axes.cache_stride, 1), "float32"]
    index_strides = tuple(T.dynamic(f"positions_stride_{of}", "int64") for of in ("batch", "token"))
    Positions = T.StridedTensor[(axes.num_batches, axes.num_tokens), index_strides, index_dtype or "int32"]

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
            body(query, key, cos_sin_cache, None, rotate_key, sine_sign, seqlen_offset)

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
            body(query, key, cos_sin_cache, positions, rotate_key, sine_sign, seqlen_offset)

    return apply_rotary
