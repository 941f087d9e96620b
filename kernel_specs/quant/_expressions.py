"""Expressions that the variants of the quantised operators share, whatever their dialect.

Functions use each argument as often as they need: pass variables or loads, not costly expressions.
"""

from typing import Any

import tilelang.language.common as T

from kernel_specs.quant._formats import LARGEST, PACK

_EXPONENT = 0x7F800000
_INV_LARGEST = {"e4m3": float.fromhex("0x1.24924ap-9"), "e2m1": float.fromhex("0x1.555556p-3")}
"""1 / LARGEST, rounded to float32."""


def bits(value: Any) -> Any:
    """The bits of a float32, as int32."""
    return T.reinterpret(value, "int32")


def is_nan(value: Any) -> Any:
    """Whether a float32 is no number, by its bits: TVM folds ``value == value`` to true."""
    return bits(value) & 0x7FFFFFFF > _EXPONENT


def canonical(value: Any) -> Any:
    """A float32 with the one NaN that CUDA's arithmetic gives in place of any, so that hosts agree on hashes."""
    return from_bits(T.if_then_else(is_nan(value), 0x7FFFFFFF, bits(value)))


def from_bits(value: Any) -> Any:
    """The float32 with these bits."""
    return T.reinterpret(T.cast(value, "int32"), "float32")


def exponent_byte(amax: Any, fmt: str) -> Any:
    """The biased exponent of the least power of two that is not below ``amax / LARGEST[fmt]``.

    254 at most: an infinite amax has the largest power of two, so that its block's finite values survive.
    """
    return T.min(((bits(amax * T.float32(_INV_LARGEST[fmt])) - 1) >> 23) + 1, 254)


def power_of_two(byte: Any) -> Any:
    """The float32 with this biased exponent; 0.0 for byte 0."""
    return from_bits(byte << 23)


def inverse_power_of_two(byte: Any) -> Any:
    """1 / `power_of_two`, exactly, for bytes 1 to 254; 2**-127 is subnormal."""
    return from_bits(T.max((254 - byte) << 23, 1 << 22))


def e2m1_top(value: Any) -> Any:
    """A uint32 whose four leading bits are `value` in e2m1: to nearest even, saturating; canonical NaN gives 6.

    The magnitude, limited to 6, is added to 2**22 times its own power of two (at least 1): the sum's last place
    is half of that power, so one addition rounds to nearest even at every scale. The sum's low bits count
    halves of that power (0 to 4), and two codes belong to each power, so the code is those bits plus twice the
    exponent, modulo 16, less a constant. One multiplication shifts both to the top and adds them.
    """
    magnitude = T.min(T.abs(value), T.float32(6.0))
    power = T.reinterpret(T.max(T.reinterpret(magnitude, "uint32") & _EXPONENT, 0x3F800000), "float32")
    total = T.reinterpret(power * T.float32(4194304.0) + magnitude, "uint32")
    shifted = total * T.uint32((1 << 28) + (1 << 6)) + T.uint32(0x60000000)
    return shifted | (T.reinterpret(value, "uint32") & T.uint32(0x80000000))


def e2m1_value(word: Any, index: Any) -> Any:
    """Element `index` (0 to 7) of a word of e2m1 codes, as float32.

    The code's bits are those of a float32 that is 2**126 times smaller, subnormal codes included.
    """
    sign = (word << (28 - 4 * index)) & T.uint32(0x80000000)
    magnitude = (word >> (4 * index)) & T.uint32(7)
    return T.reinterpret(sign | (magnitude << 22), "float32") * T.float32(2.0**126)


def largest(fmt: str) -> Any:
    """`LARGEST` as a float32 constant."""
    return T.float32(LARGEST[fmt])


def sf_of(amax: Any, fmt: str, kind: str) -> Any:
    """The scale factor of a block, as it is stored; for ue8m0 the biased exponent, as int32."""
    if kind == "float32":
        return amax / largest(fmt)
    if kind == "e4m3":
        return T.cast(amax / largest(fmt), "float8_e4m3fn")
    byte = exponent_byte(amax, fmt)
    return byte if kind == "ue8m0" else power_of_two(byte)


def inverse_of(amax: Any, fmt: str, kind: str) -> Any:
    """What the elements of a block are multiplied by before they are rounded, as float32."""
    if kind == "float32":
        return largest(fmt) / amax
    if kind == "e4m3":
        return T.float32(1) / T.cast(T.cast(amax / largest(fmt), "float8_e4m3fn"), "float32")
    return inverse_power_of_two(exponent_byte(amax, fmt))


def finite(value: Any) -> Any:
    """`value`, or the largest float32 in place of an infinite one.

    The factor of a run of zeros can overflow, and zero times infinity is no number.
    """
    limit = T.float32(float.fromhex("0x1.fffffep127"))
    return T.if_then_else(value > limit, limit, value)


def sf_at(sf: Any, kind: str, m: Any, k: Any, per_channel: Any) -> Any:
    """The scale factor of block row `m` and block column `k`, as float32.

    Packed bytes run along a row of blocks, or along a column where blocks are one column wide (`per_channel`).
    """
    if kind != "ue8m0":
        return T.cast(sf[m, k], "float32")
    along_row = (sf[m, k // PACK] >> (k % PACK * 8)) & 255
    if per_channel is False:
        return power_of_two(along_row)
    along_column = (sf[m // PACK, k] >> (m % PACK * 8)) & 255
    return power_of_two(T.if_then_else(per_channel, along_column, along_row))


def stochastic_hash(values: Any, first: Any, index: Any) -> Any:
    """A hash of four float32 `values` from `first` on, and of their position `index`, as uint32."""
    h = T.cast(index, "uint32")
    for i, factor in enumerate((0x5671D42B, 0x9995E499, 0xACE1B8A5, 0xE153538D)):
        h = h + T.reinterpret(values[first + i], "uint32") * T.uint32(factor)
    h = (h ^ (h >> 23)) * T.uint32(0x7FEB352D)
    return h ^ (h >> 16)


def random_word(hashed: Any, which: int = 0) -> Any:
    """A random uint32 from `stochastic_hash`; `which` (0 or 1) names one of two."""
    word = hashed * T.uint32((0x846CA68B, 0xD35A2D97)[which])
    return word ^ (word >> 11)


_DROPPED = {"e4m3": 20, "e2m1": 22, "bfloat16": 16}
"""Bits of a float32 mantissa that a format does not have."""

_SUBNORMAL = {"e4m3": 2.0**-6, "e2m1": 1.0, "bfloat16": 0.0}
"""Below this, a format's values are evenly spaced. 0: as float32's."""


def lane_bits(word: Any, lane: int, fmt: str) -> Any:
    """The 16 random bits that element `lane` of a rounding instruction takes from its `word`, as PTX defines it."""
    if fmt == "bfloat16":
        return (word >> (lane * 16)) & 0xFFFF
    if fmt == "e4m3":
        return (word >> (lane // 2 * 16)) & 0xFFFF
    shift = lane // 2 * 8
    return ((word >> shift) & 0xFF) | ((word >> (shift + 8)) & 0xFF00)


def rounded_stochastically(value: Any, random: Any, fmt: str) -> Any:
    """`value` rounded up or down to a neighbour in `fmt`, as float32; saturates, keeps NaN (e2m1: 6).

    What PTX defines for its ``.rs`` conversions, which sm90 lacks: 16 `random` bits are added to the leading
    bits of those that `fmt` drops, and a carry rounds up. Where `fmt` is subnormal, its smallest normal value
    is added before and taken away after, so that the same bits are dropped.
    """
    dropped, smallest = _DROPPED[fmt], T.float32(_SUBNORMAL[fmt])
    magnitude = T.min(T.abs(value), T.float32({**LARGEST, "bfloat16": float.fromhex("0x1.fep127")}[fmt]))
    offset = T.if_then_else(magnitude < smallest, smallest, T.float32(0))
    shifted = magnitude + offset
    rounded_up = T.cast(shifted - offset > magnitude, "uint32")  # the sum must be the one rounded towards zero
    carried = T.reinterpret(shifted, "uint32") - rounded_up + (random << (dropped - 16))
    rounded = T.reinterpret(carried & T.uint32(0x100000000 - (1 << dropped)), "float32") - offset
    signed = T.reinterpret(
        T.reinterpret(rounded, "uint32") | (T.reinterpret(value, "uint32") & T.uint32(0x80000000)), "float32"
    )
    return signed if fmt == "e2m1" else T.if_then_else(is_nan(value), value, signed)


@T.macro
def round_four(values: Any, first: Any, hashed: Any, fmt: str):
    """Round four float32 elements stochastically, in place, with the random words of their hash."""
    if fmt == "bfloat16":
        values[first] = rounded_stochastically(values[first], lane_bits(random_word(hashed, 0), 0, fmt), fmt)
        values[first + 1] = rounded_stochastically(values[first + 1], lane_bits(random_word(hashed, 0), 1, fmt), fmt)
        values[first + 2] = rounded_stochastically(values[first + 2], lane_bits(random_word(hashed, 1), 0, fmt), fmt)
        values[first + 3] = rounded_stochastically(values[first + 3], lane_bits(random_word(hashed, 1), 1, fmt), fmt)
    else:
        values[first] = rounded_stochastically(values[first], lane_bits(random_word(hashed), 0, fmt), fmt)
        values[first + 1] = rounded_stochastically(values[first + 1], lane_bits(random_word(hashed), 1, fmt), fmt)
        values[first + 2] = rounded_stochastically(values[first + 2], lane_bits(random_word(hashed), 2, fmt), fmt)
        values[first + 3] = rounded_stochastically(values[first + 3], lane_bits(random_word(hashed), 3, fmt), fmt)
