"""Contract of `cast`: every element of a tensor, rounded to another floating dtype."""

from __future__ import annotations

from collections.abc import Iterable

from tkc.errors import SpecError
from tkc.model import ConstAxis, DType, KernelSpec, ModelDims, Params, Role, Specialization, TensorArg, VarAxis

DTYPES = ("float32", "float16", "bfloat16", "float8_e4m3fn", "float8_e5m2")
STOCHASTIC = (("float32", "bfloat16"), ("float32", "float8_e4m3fn"), ("bfloat16", "float8_e4m3fn"))
"""Pairs that can be rounded by chance."""


def specialize(*, x_dtype: str, y_dtype: str, stochastic: bool = False) -> Params:
    """Map a call's parameters to const values. Raises SpecError for a pair that is not a conversion."""
    if x_dtype == y_dtype:
        raise SpecError(f"quant.cast: from {x_dtype} to itself is a copy, not a cast")
    if stochastic and (x_dtype, y_dtype) not in STOCHASTIC:
        known = ", ".join(f"{x} to {y}" for x, y in STOCHASTIC)
        raise SpecError(f"quant.cast: no stochastic rounding from {x_dtype} to {y_dtype}; there is {known}")
    return {"x_dtype": x_dtype, "y_dtype": y_dtype, "stochastic": stochastic}


_SHAPE = ("num_rows", "num_columns")


def arguments(specialization: Specialization) -> tuple[TensorArg, ...]:
    x_dtype, y_dtype = DType(specialization.str("x_dtype")), DType(specialization.str("y_dtype"))
    return (
        TensorArg("x", _SHAPE, x_dtype, alignment_bytes=x_dtype.size_bytes, doc="what to cast"),
        TensorArg("y", _SHAPE, y_dtype, Role.OUT, alignment_bytes=y_dtype.size_bytes, doc="it in another dtype"),
    )


def grid(dims: ModelDims) -> Iterable[Params]:
    """Between float32, activations and, in a model that is quantised, e4m3; to nearest and by chance."""
    dtypes = dict.fromkeys(("float32", *dims.dtypes, *(["float8_e4m3fn"] if dims.quant else [])))
    nearest = tuple({"x_dtype": x, "y_dtype": y} for x in dtypes for y in dtypes if x != y)
    by_chance = tuple(
        call | {"stochastic": True} for call in nearest if (call["x_dtype"], call["y_dtype"]) in STOCHASTIC
    )
    return (*nearest, *by_chance)


SPEC = KernelSpec(
    name="quant.cast",
    summary="Tensors of any size, cast to another floating dtype: to nearest even, or by chance",
    definition="y = round(x), to nearest even; 8-bit formats saturate; IEEE 754 and OCP 8-bit floating point v1.0",
    const=(
        ConstAxis("x_dtype", DTYPES, "element type of the loads"),
        ConstAxis("y_dtype", DTYPES, "element type of the stores, and the instruction that rounds"),
        ConstAxis("stochastic", (False, True), "another rounding of every element"),
    ),
    var=(VarAxis("num_rows", "0 launches nothing"), VarAxis("num_columns", "more than 2**31 elements in all, too")),
    specialize=specialize,
    arguments=arguments,
    grid=grid,
)
