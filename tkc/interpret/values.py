"""Arithmetic on arrays, as the generated device code does it.

Every function takes and gives arrays of one element type. Integers wrap around; float32 stays float32;
16-bit floats are computed in float32 and rounded once. A product and a sum are rounded separately:
a compiler may contract them, so only an explicit fused operation is fused here.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from tkc.interpret.dtypes import Array, convert, is_float, widen
from tkc.interpret.errors import UnsupportedError

_CANONICAL_NAN = np.uint32(0x7FFFFFFF)


def add(a: Array, b: Array) -> Array:
    """a + b"""
    return _rounded(np.add, a, b)


def subtract(a: Array, b: Array) -> Array:
    """a - b"""
    return _rounded(np.subtract, a, b)


def multiply(a: Array, b: Array) -> Array:
    """a * b"""
    return _rounded(np.multiply, a, b)


def divide(a: Array, b: Array) -> Array:
    """IEEE division of floats; C's truncating division of integers."""
    return _rounded(np.divide, a, b) if is_float(a.dtype) else truncdiv(a, b)


def _rounded(operation: Callable[..., Any], *operands: Array) -> Array:
    kind = operands[0].dtype
    return convert(operation(*(widen(operand) for operand in operands)), kind)


def with_canonical_nan(function: Callable[..., Array]) -> Callable[..., Array]:
    """`function`, whose NaN results have the one bit pattern that NVIDIA's float32 arithmetic gives them."""

    def apply(*operands: Array) -> Array:
        result = function(*operands)
        missing = np.isnan(result)
        if not missing.any():
            return result
        return np.where(missing, _CANONICAL_NAN, np.asarray(result).view(np.uint32)).view(np.float32)

    return apply


def floordiv(a: Array, b: Array) -> Array:
    """Division rounded towards minus infinity."""
    if is_float(a.dtype):
        return _rounded(lambda x, y: np.floor(x / y), a, b)
    return np.floor_divide(a, _no_zero(b))


def floormod(a: Array, b: Array) -> Array:
    """Remainder with the sign of the divisor."""
    return _rounded(np.mod, a, b) if is_float(a.dtype) else np.mod(a, _no_zero(b))


def truncdiv(a: Array, b: Array) -> Array:
    """Integer division rounded towards zero."""
    b = _no_zero(b)
    quotient = np.floor_divide(a, b)
    inexact = (np.multiply(quotient, b) != a) & ((a < 0) != (b < 0))
    return (quotient + inexact.astype(a.dtype)).astype(a.dtype)


def truncmod(a: Array, b: Array) -> Array:
    """Integer remainder with the sign of the dividend; C's fmod for floats."""
    if is_float(a.dtype):
        return _rounded(np.fmod, a, b)
    return np.fmod(a, _no_zero(b))


def _no_zero(b: Array) -> Array:
    """Lanes that are masked off may divide by zero; give them something harmless."""
    return np.where(b == 0, b.dtype.type(1), b)


def maximum(a: Array, b: Array) -> Array:
    """The larger; of a NaN and a number, the number (fmaxf)."""
    if not is_float(a.dtype):
        return np.maximum(a, b)
    return convert(np.fmax(widen(a), widen(b)), a.dtype)


def minimum(a: Array, b: Array) -> Array:
    """The smaller; of a NaN and a number, the number (fminf)."""
    if not is_float(a.dtype):
        return np.minimum(a, b)
    return convert(np.fmin(widen(a), widen(b)), a.dtype)


def larger_in_c(a: Array, b: Array) -> Array:
    """``a > b ? a : b``, which is what code for a CPU computes: a NaN in `b` stays, one in `a` does not."""
    return np.where(widen(a) > widen(b), a, b)


def smaller_in_c(a: Array, b: Array) -> Array:
    """``a < b ? a : b``."""
    return np.where(widen(a) < widen(b), a, b)


def maximum_nan(a: Array, b: Array) -> Array:
    """The larger; NaN if either is NaN."""
    return convert(np.maximum(widen(a), widen(b)), a.dtype)


def minimum_nan(a: Array, b: Array) -> Array:
    """The smaller; NaN if either is NaN."""
    return convert(np.minimum(widen(a), widen(b)), a.dtype)


def compare(operation: Callable[..., Any]) -> Callable[[Array, Array], Array]:
    """A comparison on widened values."""
    return lambda a, b: operation(widen(a), widen(b))


def shift_left(a: Array, b: Array) -> Array:
    """a << b, of the type of `a`."""
    return np.left_shift(a, b.astype(a.dtype))


def shift_right(a: Array, b: Array) -> Array:
    """a >> b: arithmetic if signed, logical if not."""
    return np.right_shift(a, b.astype(a.dtype))


def fused_multiply_add(a: Array, b: Array, c: Array) -> Array:
    """a * b + c, rounded once (float32 through exact products in float64 and a round-to-odd sum)."""
    if a.dtype == np.float64:
        raise UnsupportedError("a fused multiply-add of float64")
    x, y, z = (widen(v).astype(np.float64) for v in (a, b, c))
    return convert(_to_odd(x * y, z).astype(np.float32), a.dtype)


def _to_odd(product: Array, addend: Array) -> Array:
    """Sum in float64 rounded to odd, so that rounding it again to float32 is rounding once."""
    total = np.asarray(product + addend)
    virtual = total - product
    error = (product - (total - virtual)) + (addend - virtual)
    bits = total.view(np.int64)
    inexact = (error != 0) & np.isfinite(total) & ((bits & 1) == 0)
    away = (error > 0) == (total > 0)
    return np.where(inexact, np.where(away, bits | 1, bits - 1), bits).view(np.float64)


def through_float64(function: Callable[..., Any]) -> Callable[..., Array]:
    """A transcendental function: computed in float64, rounded once to its operands' type."""

    def apply(*operands: Array) -> Array:
        kind = operands[0].dtype
        exact = function(*(widen(operand).astype(np.float64) for operand in operands))
        return convert(exact if kind == np.float64 else exact.astype(np.float32), kind)

    return apply


def exact_on_float(function: Callable[..., Any]) -> Callable[..., Array]:
    """A function that is exact, or correctly rounded, in float32 (floor, sqrt, …)."""
    return lambda *operands: _rounded(function, *operands)


def absolute(a: Array) -> Array:
    """|a|; for floats only the sign bit changes."""
    return convert(np.abs(widen(a)), a.dtype) if is_float(a.dtype) else np.abs(a)


def round_half_away(a: Array) -> Array:
    """C's round: halves go away from zero."""
    return np.copysign(np.floor(np.abs(a) + a.dtype.type(0.5)), a)


def erf(a: Array) -> Array:
    """The error function in float64."""
    import torch

    return torch.erf(torch.from_numpy(np.ascontiguousarray(a))).numpy().reshape(np.shape(a))


def select(condition: Array, yes: Array, no: Array) -> Array:
    """Element by element, `yes` where `condition` holds."""
    return np.where(condition, yes, no)


def population_count(a: Array) -> Array:
    """Number of bits that are set."""
    return np.bitwise_count(a).astype(a.dtype)


def leading_zeros(a: Array) -> Array:
    """Number of zero bits above the highest bit that is set."""
    width = a.dtype.itemsize * 8
    bits = np.asarray(a).view(np.dtype(f"u{a.dtype.itemsize}")).astype(np.uint64)
    for shift in (1, 2, 4, 8, 16, 32):
        bits = bits | (bits >> np.uint64(shift))
    return (width - np.bitwise_count(bits).astype(np.int64)).astype(np.int32)


def scale_by_power_of_two(a: Array, power: Array) -> Array:
    """a * 2**power, rounded once."""
    return convert(np.ldexp(widen(a), power), a.dtype)


def fold(values: Array, axis: int, operation: Callable[[Array, Array], Array]) -> Array:
    """Reduce one axis by combining its halves until one element is left: the order of a butterfly."""
    values = np.moveaxis(values, axis, 0)
    while len(values) > 1:
        half = len(values) // 2
        low, high, rest = values[:half], values[half : 2 * half], values[2 * half :]
        values = operation(low, high)
        if len(rest):
            values = np.concatenate([values[:1], values[1:], rest]) if half else rest
    return values[0]
