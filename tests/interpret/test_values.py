"""Arithmetic wraps, rounds once, and divides as C and Python do."""

from __future__ import annotations

from fractions import Fraction

import numpy as np
import pytest

from tkc.interpret import values


def test_int32_sums_and_products_wrap():
    big = np.array([2**31 - 1], np.int32)
    with np.errstate(all="ignore"):
        assert values.add(big, np.int32(1)).tolist() == [-(2**31)]
        assert values.multiply(big, big).tolist() == [1]


@pytest.mark.parametrize(("a", "b"), [(7, 2), (-7, 2), (7, -2), (-7, -2), (6, 3), (-6, 3)])
def test_floor_and_truncating_division_agree_with_their_definitions(a, b):
    x, y = np.int32([a]), np.int32([b])
    assert values.floordiv(x, y)[0] == a // b
    assert values.floormod(x, y)[0] == a % b
    quotient = int(a / b)
    assert values.truncdiv(x, y)[0] == quotient
    assert values.truncmod(x, y)[0] == a - quotient * b


def test_fused_multiply_add_rounds_once():
    generator = np.random.default_rng(3)
    a, b = (generator.standard_normal(3000).astype(np.float32) for _ in range(2))
    c = (-a * b * np.float32(1 + 2.0**-20)).astype(np.float32)
    got = values.fused_multiply_add(a, b, c)
    exact = [Fraction(float(x)) * Fraction(float(y)) + Fraction(float(z)) for x, y, z in zip(a, b, c, strict=True)]
    for value, true in zip(got, exact, strict=True):
        ulp = Fraction(float(np.spacing(np.abs(value))))
        assert abs(Fraction(float(value)) - true) <= ulp / 2


def test_a_double_rounding_trap_is_not_fallen_into():
    """The exact sum lies just above a tie of float32; rounding to float64 first would hide that."""
    a, b = np.float32([1 + 2.0**-23]), np.float32([1 - 2.0**-23])
    c = np.float32([2.0**24])
    true = Fraction(float(a[0])) * Fraction(float(b[0])) + Fraction(2**24)
    assert true < 2**24 + 1
    assert values.fused_multiply_add(a, b, c)[0] == np.float32(2**24)
    up = values.fused_multiply_add(np.float32([1 + 2.0**-12]), np.float32([1 + 2.0**-12]), c)
    assert up[0] == np.float32(2**24 + 2)


def test_maximum_prefers_numbers_to_nan_unless_asked():
    a, b = np.float32([np.nan, 1]), np.float32([2, np.nan])
    assert values.maximum(a, b).tolist() == [2, 1]
    assert np.isnan(values.maximum_nan(a, b)).all()


def test_folding_takes_halves_and_keeps_odd_elements():
    numbers = np.arange(1, 8, dtype=np.int64)
    assert values.fold(numbers, 0, values.add) == 28
    assert values.fold(numbers[None], 1, values.maximum).tolist() == [7]
