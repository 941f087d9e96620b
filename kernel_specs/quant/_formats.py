"""Formats, kinds of scale factors and recipes of the quantised operators, shared by their specs and variants."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from tkc.errors import SpecError, unknown_name
from tkc.model import DType, ModelDims

LARGEST = {"e4m3": 448.0, "e2m1": 6.0}
"""Largest finite value of each quantised format."""

STORAGE = {
    "float32": DType.FLOAT32,
    "bfloat16": DType.BFLOAT16,
    "e4m3": DType.FLOAT8_E4M3FN,
    "e2m1": DType.INT8,
}
"""What tensors of a format are stored as. A byte of e2m1 holds elements 2k (low four bits) and 2k + 1."""

SF_KINDS = ("float32", "pow2", "e4m3", "ue8m0")
"""Scale factors: any float32; float32 powers of two; e4m3; powers of two as packed exponent bytes, 4 in an int32."""

SF_STORAGE = {
    "float32": DType.FLOAT32,
    "pow2": DType.FLOAT32,
    "e4m3": DType.FLOAT8_E4M3FN,
    "ue8m0": DType.INT32,
}
PACK = 4
"""Exponent bytes in one word of packed scale factors."""

BLOCK_WIDTHS = (16, 32, 64, 128)
"""Elements along a row that can share a scale factor."""


@dataclass(frozen=True, slots=True)
class Recipe:
    """How a model quantises: a format, elements that share a scale factor, and the kind of scale factor."""

    fmt: str
    width: int
    sf: str


def recipes(dims: ModelDims) -> Iterator[Recipe]:
    """The quantisation recipes of a model. Raises SpecError for one that is not ``fmt:block:scale``."""
    for text in dims.quant:
        fmt, width, sf = [*text.split(":"), "", ""][:3]
        if fmt not in LARGEST:
            raise SpecError(f"recipe {text!r} of {dims.name}: {unknown_name('format', fmt, LARGEST)}")
        if sf not in SF_KINDS:
            raise SpecError(f"recipe {text!r} of {dims.name}: {unknown_name('scale factor', sf, SF_KINDS)}")
        if not width.isdecimal() or int(width) not in BLOCK_WIDTHS:
            raise SpecError(f"recipe {text!r} of {dims.name}: block {width!r} is not one of {BLOCK_WIDTHS}")
        yield Recipe(fmt, int(width), sf)


def sf_kind(round_sf: bool, use_packed_ue8m0: bool, use_e4m3_sf: bool) -> str:
    """The kind of scale factor that three flags of a call ask for. Raises ValueError if they contradict."""
    if use_packed_ue8m0 and not round_sf:
        raise ValueError("packed UE8M0 scale factors are powers of two; pass round_sf=True with use_packed_ue8m0=True")
    if round_sf and use_e4m3_sf:
        raise ValueError("round_sf=True and use_e4m3_sf=True exclude each other: choose powers of two or e4m3")
    if use_packed_ue8m0:
        return "ue8m0"
    return "pow2" if round_sf else "e4m3" if use_e4m3_sf else "float32"
