"""Conversions between element types round and saturate as the hardware does."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from tkc.interpret import dtypes
from tkc.interpret.dtypes import BF16, E2M1, E4M3, E5M2, E8M0, convert, widen
from tkc.interpret.stochastic import round_stochastically

F16 = np.dtype(np.float16)


def _every_kind_of_float32() -> np.ndarray:
    """Random bit patterns, a sweep over the 8-bit formats' range, powers of two and their neighbours."""
    random = np.random.default_rng(1).integers(0, 2**32, 200_000, dtype=np.uint64).astype(np.uint32).view(np.float32)
    powers = np.float32(2.0) ** np.arange(-20, 18, dtype=np.float32)
    near = np.concatenate([powers, np.nextafter(powers, np.float32(0)), np.nextafter(powers, np.float32(np.inf))])
    return np.concatenate([random, np.linspace(-500, 500, 100_001, dtype=np.float32), near, -near])


@pytest.mark.parametrize(
    ("kind", "torch_kind", "largest"),
    [
        (E4M3, torch.float8_e4m3fn, 448.0),
        (E5M2, torch.float8_e5m2, 57344.0),
        (BF16, torch.bfloat16, float("inf")),
        (F16, torch.float16, float("inf")),
    ],
)
def test_narrowing_float32_is_torch_s_rounding_after_saturation(kind, torch_kind, largest):
    values = _every_kind_of_float32()
    with np.errstate(all="ignore"):
        got = widen(convert(values, kind))
    want = torch.from_numpy(values).clamp(-largest, largest).to(torch_kind).float().numpy()
    assert np.array_equal(got, want, equal_nan=True)


def test_infinity_saturates_to_the_largest_8_bit_float_and_overflows_16_bits():
    infinity = np.float32([np.inf, -np.inf])
    assert widen(convert(infinity, E4M3)).tolist() == [448, -448]
    assert widen(convert(infinity, E5M2)).tolist() == [57344, -57344]
    assert widen(convert(infinity, BF16)).tolist() == [np.inf, -np.inf]


def test_e2m1_rounds_halves_to_even_saturates_and_makes_nan_six():
    values = np.float32([0.25, 0.75, 1.25, 1.75, 2.5, 3.5, 5, 7, -0.0, -5, np.inf, np.nan])
    codes = convert(values, E2M1).view(np.uint8)
    assert codes.tolist() == [0, 2, 2, 4, 4, 6, 6, 7, 8, 14, 7, 7]


def test_e8m0_rounds_up_to_a_power_of_two():
    values = np.float32([1.0, 1.5, 2.0**-126, 3e38, np.inf])
    assert convert(values, E8M0).view(np.uint8).tolist() == [127, 128, 1, 254, 254]


def test_floats_become_integers_by_truncation_and_saturation():
    values = np.float32([2.9, -2.9, 3e9, -3e9, np.nan, np.inf])
    assert convert(values, np.dtype(np.int32)).tolist() == [2, -2, 2**31 - 1, -(2**31), 0, 2**31 - 1]
    assert convert(np.float32([1e20, -1e20]), np.dtype(np.int64)).tolist() == [2**63 - 1, -(2**63)]
    assert convert(np.float32([np.nan]), np.dtype(np.int64)).tolist() == [-(2**63)]
    assert convert(np.float64([np.nan]), np.dtype(np.int32)).tolist() == [-(2**31)]
    assert convert(np.float32([300.0]), np.dtype(np.uint8)).tolist() == [300 - 256]


@pytest.mark.parametrize("name", ["int8", "uint8", "int16", "uint32", "int64"])
def test_integers_wrap_when_they_are_narrowed(name):
    kind = np.dtype(name)
    values = np.array([0, 1, -1, 2**31, -(2**40) + 5], np.int64)
    modulus = 2 ** (8 * kind.itemsize)
    assert [int(v) % modulus for v in convert(values, kind)] == [int(v) % modulus for v in values]


def test_an_unknown_type_is_named():
    with pytest.raises(dtypes.UnsupportedError, match="float6_e3m2fn"):
        dtypes.parse("float6_e3m2fn")


@pytest.mark.parametrize(("kind", "step"), [(BF16, 2.0**-7), (E4M3, 2.0**-3), (E5M2, 2.0**-2), (E2M1, 2.0**-1)])
def test_stochastic_rounding_carries_out_of_the_dropped_bits(kind, step):
    """1 + step / 4 is rounded up by exactly the quarter of all random words whose top two bits are set."""
    value = np.float32([1 + step / 4])
    words = np.array([0x0000, 0xBFFF, 0xC000, 0xFFFF], np.uint32)
    if kind == E2M1:  # The sixteen bits of the first lanes are the low bytes of both halves of the word.
        words = (words & 0xFF) | ((words & 0xFF00) << 8)
    got = widen(round_stochastically(value, words, np.int32(0), kind))
    assert got.tolist() == [1, 1, 1 + step, 1 + step]


def test_stochastic_rounding_gives_upper_lanes_the_upper_half_of_the_word():
    value, word = np.float32([1.0625]), np.uint32([0xFFFF0000])
    lanes = [float(widen(round_stochastically(value, word, np.int32(lane), E4M3))[0]) for lane in range(4)]
    assert lanes == [1, 1, 1.125, 1.125]


def test_stochastic_rounding_keeps_what_is_exact_and_saturates():
    values = np.float32([0, -2, 448, 460, np.inf, -np.inf])
    got = widen(round_stochastically(values, np.uint32(0xFFFFFFFF), np.int32(0), E4M3))
    assert got.tolist() == [0, -2, 448, 448, 448, -448]
    assert np.isnan(widen(round_stochastically(np.float32([np.nan]), np.uint32(0), np.int32(0), E4M3)))[0]
