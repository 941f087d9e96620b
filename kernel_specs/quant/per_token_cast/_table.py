"""e2m1 to e4m3 by tables: there are eight magnitudes, and what each becomes is the same for a run of elements.

A table is two uint32, a byte for each magnitude. One byte permutation looks up four elements, where decoding,
multiplying and rounding them takes 10 instructions each.
"""

from typing import Any

import tilelang.language as T

from kernel_specs.quant import _expressions
from kernel_specs.quant._cuda import permuted

_MAGNITUDES = (0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0)
"""What the codes from 1 on stand for; 0 is 0."""

_FLAGS = (0x08040201, 0x80402010)
"""A table: the bit of its own for each magnitude."""


@T.macro
def largest_magnitude(words: Any, u: Any, first: Any, count: Any):
    """The largest magnitude of `count` words of codes, ``words[u, first:]``, as float32."""
    seen = T.alloc_var("uint32")
    seen = T.uint32(0)
    for w in T.unroll(count):
        for half in T.unroll(2):
            seen = seen | _looked_up(T.uint32(_FLAGS[0]), T.uint32(_FLAGS[1]), words[u, first + w], half)
    seen = seen | (seen >> 16)
    seen = (seen | (seen >> 8)) & T.uint32(0xFF)
    return _expressions.e2m1_value(T.cast(31 - T.clz(T.cast(seen, "int32")), "uint32"), 0)


@T.macro
def requantise(words: Any, u: Any, first: Any, count: Any, factor: Any, out: Any):
    """Write the products of `count` words of codes, ``words[u, first:]``, and `factor` to `out`, as words of e4m3."""
    codes, scaled = T.alloc_local((8,), "float8_e4m3fn"), T.alloc_local((8,), "float32")
    sign_bytes = T.alloc_var("uint32")
    sign_bytes = T.uint32(0x8000)
    scaled[0] = T.float32(0)
    for v, magnitude in enumerate(_MAGNITUDES):
        scaled[v + 1] = T.float32(magnitude) * factor
    if _expressions.is_nan(factor):  # zero becomes NaN too, and NaN has one code, without a sign
        scaled[0] = factor
        sign_bytes = T.uint32(0)
    for v in T.vectorized(8):
        codes[v] = T.cast(scaled[v], "float8_e4m3fn")
    table = T.view(codes, (2,), "uint32")
    for w in T.unroll(count):
        for half in T.unroll(2):
            out[(first + w) * 2 + half] = _looked_up(table[0], table[1], words[u, first + w], half) ^ _signs(
                sign_bytes, words[u, first + w], half
            )


def _looked_up(low: Any, high: Any, word: Any, half: Any) -> Any:
    """Four bytes of a table, for the codes of the low or high half of a word."""
    return permuted(low, high, (word >> (16 * half)) & T.uint32(0x7777))


def _signs(sign_bytes: Any, word: Any, half: Any) -> Any:
    """Four bytes, for the codes of half a word: the low byte of `sign_bytes` for a positive one, else the next."""
    return permuted(sign_bytes, T.uint32(0), (word >> (16 * half + 3)) & T.uint32(0x1111))
