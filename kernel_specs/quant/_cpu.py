"""Narrow floats as integers: what the C dialect, which has none, is given in their place.

Tensors of narrow dtypes are read and written as unsigned integers through `codes`. Everything else here
builds expressions; arguments are used several times, so pass variables or loads.
"""

from dataclasses import dataclass
from typing import Any

import tilelang.cpu.language as T

from kernel_specs.quant._expressions import e2m1_top, is_nan

_INFINITY = 0x7F800000


@dataclass(frozen=True, slots=True)
class _Format:
    """A binary format narrower than float32.

    Attributes:
        storage: unsigned integer of its size.
        mantissa: bits of it.
        bias: of the exponent.
        largest: finite value; what greater magnitudes, infinities too, become if `saturates`.
        infinity: its code, or the code above the largest one.
        nan: code of the NaN that conversions give.
    """

    storage: str
    mantissa: int
    bias: int
    largest: float
    infinity: int
    nan: int
    saturates: bool

    @property
    def sign(self) -> int:
        return 0x80 if self.storage == "uint8" else 0x8000

    @property
    def dropped(self) -> int:
        """Bits of a float32 mantissa that it lacks."""
        return 23 - self.mantissa


FORMATS = {
    "bfloat16": _Format("uint16", 7, 127, float.fromhex("0x1.fep127"), 0x7F80, 0x7FFF, False),
    "float16": _Format("uint16", 10, 15, 65504.0, 0x7C00, 0x7FFF, False),
    "float8_e4m3fn": _Format("uint8", 3, 7, 448.0, 0x7F, 0x7F, True),
    "float8_e5m2": _Format("uint8", 2, 15, 57344.0, 0x7C, 0x7F, True),
}


def codes(tensor: Any) -> Any:
    """Another view of `tensor`, with unsigned integers of its element size in place of narrow floats."""
    dtype = FORMATS[str(tensor.dtype)].storage if str(tensor.dtype) in FORMATS else str(tensor.dtype)
    if not tensor.strides:
        return T.Tensor(tensor.shape, dtype, tensor.data)
    return T.StridedTensor(tensor.shape, tuple(tensor.strides), dtype, data=tensor.data)


def decoded(code: Any, dtype: str) -> Any:
    """The float32 value of a code of `dtype`; a float32 as it is."""
    fmt = FORMATS.get(dtype)
    if fmt is None:
        return code
    wide = T.cast(code, "uint32")
    magnitude = wide & (fmt.sign - 1)
    sign = (wide & fmt.sign) << (32 - 8 * (1 if fmt.sign == 0x80 else 2))
    scaled = T.reinterpret(magnitude << fmt.dropped, "float32") * T.float32(2.0 ** (127 - fmt.bias))
    special = (magnitude << fmt.dropped) | _INFINITY
    is_special = magnitude >= fmt.infinity
    bits = T.if_then_else(is_special, special, T.reinterpret(scaled, "uint32"))
    return T.reinterpret(bits | sign, "float32")


def encoded(value: Any, dtype: str) -> Any:
    """The code of a float32 in `dtype`, rounded to nearest even."""
    fmt = FORMATS.get(dtype)
    if fmt is None:
        return value
    bits = T.reinterpret(value, "uint32")
    limited = T.min(T.abs(value), T.float32(fmt.largest)) if fmt.saturates else T.abs(value)
    magnitude = T.reinterpret(limited, "uint32")
    half = magnitude + ((1 << (fmt.dropped - 1)) - 1) + ((magnitude >> fmt.dropped) & 1)
    normal = T.min((half >> fmt.dropped) - ((127 - fmt.bias) << fmt.mantissa), fmt.infinity)
    # Below the smallest normal value codes count equal steps, which are the last place of this number.
    smallest = T.float32(2.0 ** (1 - fmt.bias))
    step = 2.0 ** (24 - fmt.bias - fmt.mantissa)
    counted = T.reinterpret(limited + T.float32(step), "uint32") - T.reinterpret(T.float32(step), "uint32")
    code = T.if_then_else(limited < smallest, counted, normal) if fmt.bias < 127 else normal
    signed = code | (bits >> (32 - 8 * (1 if fmt.sign == 0x80 else 2))) & fmt.sign
    return T.cast(T.if_then_else(is_nan(value), T.uint32(fmt.nan), signed), fmt.storage)


def encoded_e2m1(value: Any) -> Any:
    """The four bits of a float32 in e2m1, as uint32: to nearest even, saturating; NaN gives 7."""
    return T.if_then_else(is_nan(value), T.uint32(7), e2m1_top(value) >> 28)
