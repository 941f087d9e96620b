"""Stochastic rounding, as ``cvt.rs`` of PTX does it.

Sixteen random bits are added to the bits that rounding would drop, the highest to the highest; a carry rounds
away from zero. One 32-bit word serves the lanes of one instruction: bfloat16 takes half of it for each of two
lanes; the 8-bit formats take the low half for lanes 0 and 1 and the high half for lanes 2 and 3; e2m1 takes
the low byte of both halves for lanes 0 and 1 and the high byte of both for lanes 2 and 3.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from tkc.interpret import dtypes
from tkc.interpret.dtypes import BF16, E2M1, E4M3, E5M2, Array
from tkc.interpret.errors import UnsupportedError

LANES = {BF16: 2, E4M3: 4, E5M2: 4, E2M1: 4}
"""Lanes of one instruction."""

# Bits of the mantissa, the exponent of the smallest normal number, and the largest number.
_FORMATS = {BF16: (7, -126, 3.3895313892515355e38), E4M3: (3, -6, 448.0), E5M2: (2, -14, 57344.0), E2M1: (1, 0, 6.0)}


def round_stochastically(values: Array, word: Array, lane: Array, to: np.dtype[Any]) -> Array:
    """Convert float32 values, each in its lane of an instruction that is given `word`. Saturates; NaN stays NaN."""
    if to not in _FORMATS or values.dtype != np.float32:
        raise UnsupportedError(f"stochastic rounding from {values.dtype} to {to}")
    mantissa, smallest, largest = _FORMATS[to]
    exact = np.abs(np.where(np.isfinite(values), values, 0)).astype(np.float64)
    _, exponent = np.frexp(exact)
    step = np.ldexp(1.0, np.maximum(exponent - 1, smallest) - mantissa)
    whole = np.floor(exact / step)
    dropped = np.floor((exact / step - whole) * 65536.0).astype(np.uint32)
    carried = (dropped + _lane_bits(word, lane, to)) >> np.uint32(16)
    rounded = np.minimum((whole + carried) * step, largest)
    rounded = np.where(np.isinf(values), largest, rounded)
    rounded = np.where(np.isnan(values), np.nan, np.copysign(rounded, values))
    return dtypes.convert(rounded.astype(np.float32), to)


def _lane_bits(word: Array, lane: Array, to: np.dtype[Any]) -> Array:
    word, lane = word.astype(np.uint32), np.asarray(lane).astype(np.uint32) % np.uint32(LANES[to])
    if to == BF16:
        return (word >> (lane * np.uint32(16))) & np.uint32(0xFFFF)
    upper = lane // np.uint32(2)
    if to != E2M1:
        return (word >> (upper * np.uint32(16))) & np.uint32(0xFFFF)
    shift = upper * np.uint32(8)
    return ((word >> shift) & np.uint32(0xFF)) | ((word >> (shift + np.uint32(8))) & np.uint32(0xFF00))
