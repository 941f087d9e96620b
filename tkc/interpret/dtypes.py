"""Element types: TileLang's names, NumPy's types, and conversions as the hardware rounds them.

Narrow floats are ``ml_dtypes`` types, which tilelang brings along. Conversions to them round to nearest
even; to the 8-bit and 4-bit formats they saturate, as CUDA's do (ml_dtypes itself overflows to NaN).
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import cache
from typing import Any, TypeAlias

import ml_dtypes
import numpy as np

from tkc.interpret.errors import UnsupportedError

Array: TypeAlias = Any
"""A NumPy array or scalar; what every scalar-typed expression evaluates to."""

_NUMPY: dict[str, Any] = {
    "bool": np.bool_,
    "int8": np.int8,
    "int16": np.int16,
    "int32": np.int32,
    "int64": np.int64,
    "uint8": np.uint8,
    "uint16": np.uint16,
    "uint32": np.uint32,
    "uint64": np.uint64,
    "float16": np.float16,
    "float32": np.float32,
    "float64": np.float64,
    "bfloat16": ml_dtypes.bfloat16,
    "float8_e4m3": ml_dtypes.float8_e4m3fn,
    "float8_e4m3fn": ml_dtypes.float8_e4m3fn,
    "float8_e5m2": ml_dtypes.float8_e5m2,
    "float8_e8m0fnu": ml_dtypes.float8_e8m0fnu,
    "float4_e2m1fn": ml_dtypes.float4_e2m1fn,
}
_BY_NUMPY = {np.dtype(kind): name for name, kind in _NUMPY.items() if name != "float8_e4m3"}

BF16 = np.dtype(ml_dtypes.bfloat16)
E4M3 = np.dtype(ml_dtypes.float8_e4m3fn)
E5M2 = np.dtype(ml_dtypes.float8_e5m2)
E8M0 = np.dtype(ml_dtypes.float8_e8m0fnu)
E2M1 = np.dtype(ml_dtypes.float4_e2m1fn)
_LARGEST = {E4M3: np.float32(448), E5M2: np.float32(57344), E2M1: np.float32(6)}
_NARROW = frozenset({BF16, E4M3, E5M2, E8M0, E2M1, np.dtype(np.float16)})
_CANONICAL_NAN: dict[np.dtype[Any], Any] = {
    BF16: np.uint16(0x7FFF),
    np.dtype(np.float16): np.uint16(0x7FFF),
    E4M3: np.uint8(0x7F),
    E5M2: np.uint8(0x7F),
}


@dataclass(frozen=True, slots=True)
class ElementType:
    """One TileLang type: the NumPy type of a lane, its width in memory, and the number of lanes."""

    name: str
    numpy: np.dtype[Any]
    bits: int
    lanes: int

    @property
    def scalar(self) -> ElementType:
        """The type of one lane."""
        return parse(self.name)


@cache
def parse(text: str) -> ElementType:
    """Read a TileLang type such as ``bfloat16`` or ``float32x4``. Raises UnsupportedError for others."""
    match = re.fullmatch(r"(.*?)(?:x(\d+))?", text)
    assert match is not None
    name, lanes = match[1], int(match[2] or 1)
    if name not in _NUMPY:
        raise UnsupportedError(f"the type {text}")
    kind = np.dtype(_NUMPY[name])
    bits = 4 if kind == E2M1 else 8 * kind.itemsize
    return ElementType(name, kind, bits, lanes)


def name_of(kind: np.dtype[Any]) -> str:
    """TileLang's name of a NumPy type."""
    return _BY_NUMPY[np.dtype(kind)]


def is_float(kind: np.dtype[Any]) -> bool:
    """Whether values of this type are floating-point numbers."""
    return np.dtype(kind) in _NARROW or np.dtype(kind).kind == "f"


def convert(values: Array, to: np.dtype[Any]) -> Array:
    """Convert as CUDA does: round to nearest even, saturate to 8 and 4 bits, truncate to integers."""
    source = values.dtype
    if source == to:
        return values
    if to.kind == "b":
        return widen(values) != 0
    if to in _NARROW:
        return _to_narrow(values, to)
    if is_float(to):
        return widen(values).astype(to)
    if is_float(source):
        return _float_to_integer(widen(values), to)
    return values.astype(to)


def widen(values: Array) -> Array:
    """Narrow floats as float32, exactly; everything else as it is."""
    if values.dtype == BF16:
        bits = np.asarray(values).view(np.uint16).astype(np.uint32)
        return (bits << np.uint32(16)).view(np.float32)
    return values.astype(np.float32) if values.dtype in _NARROW else values


def _to_narrow(values: Array, to: np.dtype[Any]) -> Array:
    wide = widen(values)
    if not is_float(wide.dtype):
        wide = wide.astype(np.float32)
    if to == E8M0:
        return _to_e8m0(wide)
    nan = np.isnan(wide)
    if to in _LARGEST:
        wide = np.clip(wide, -_LARGEST[to], _LARGEST[to])
    if to == E2M1:
        return np.where(nan, np.float32(6), wide).astype(E2M1)
    narrow = np.asarray(wide.astype(to))
    if nan.any():
        bits = narrow.view(_CANONICAL_NAN[to].dtype)
        narrow = np.where(nan, _CANONICAL_NAN[to], bits).view(to)
    return narrow


def _to_e8m0(wide: Array) -> Array:
    """Round up to a power of two, saturating; the sign is dropped and NaN stays NaN."""
    bits = np.abs(wide.astype(np.float32)).view(np.uint32)
    exponent = (bits >> np.uint32(23)) + ((bits & np.uint32(0x7FFFFF)) != 0)
    byte = np.where(np.isnan(wide), 255, np.minimum(exponent, 254))
    return byte.astype(np.uint8).view(E8M0)


def _float_to_integer(wide: Array, to: np.dtype[Any]) -> Array:
    """Truncate towards zero and saturate. Below 32 bits, wrap what 32 bits hold.

    NaN gives 0, or the highest bit alone where either side has 64 bits.
    """
    through = to if to.itemsize >= 4 else np.dtype(np.int32)
    limits = np.iinfo(through)
    exact = np.where(np.isnan(wide), 0, np.trunc(wide)).astype(np.float64)
    inside = np.clip(exact, float(limits.min), float(limits.max))
    with np.errstate(invalid="ignore"):
        whole = np.where(exact >= float(limits.max), through.type(limits.max), inside.astype(through))
    if wide.dtype == np.float64 or through.itemsize == 8:
        highest = np.array(1 << (8 * through.itemsize - 1), np.uint64).astype(f"u{through.itemsize}").view(through)
        whole = np.where(np.isnan(wide), highest, whole)
    return whole.astype(to)


def pack_bits(values: Array) -> Array:
    """The bits of each element as an unsigned integer of its width (4-bit floats: one byte each)."""
    array = np.ascontiguousarray(values)
    if array.dtype == E2M1:
        return array.view(np.uint8) & np.uint8(0xF)
    return array.view(np.dtype(f"u{array.dtype.itemsize}"))
