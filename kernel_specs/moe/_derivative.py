"""Derivatives of the scoring functions, as functions of the score, for kernels."""

from typing import Any

import tilelang.language as T

SERIES = (0.000129130945, -0.00130112655, 0.00827621203, -0.041647464, 0.166663632, -0.499999821)
"""``(1 - exp(-v)) / v - 1`` over v, for v below 1, highest power first: there the difference would cancel."""


@T.macro
def score_derivative(score: Any, scoring: str) -> Any:
    """The derivative by its logit of a score."""
    result = T.alloc_var("float32")
    if scoring == "sigmoid":
        result = score * (T.float32(1) - score)
    else:
        square, series = T.alloc_var("float32"), T.alloc_var("float32")
        square = score * score
        series = T.float32(SERIES[0])
        for coefficient in SERIES[1:]:
            series = T.fma(series, square, T.float32(coefficient))
        half = score * T.float32(0.5)
        near = T.fma(square * series, half, half)
        far = T.float32(0.5) * (T.float32(1) - exp(-square)) * reciprocal(score)
        result = T.if_then_else(square < T.float32(1), near, far)
    return result


def exp(x: Any) -> Any:
    """The fast exponential of the device."""
    return T.__exp(x)


def reciprocal(x: Any) -> Any:
    """The fast reciprocal of the device."""
    return T.fast_rcp(x)
