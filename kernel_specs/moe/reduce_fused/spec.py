"""The contract of ``moe.reduce_fused``."""

from __future__ import annotations

from collections.abc import Iterator

from tkc.errors import SpecError
from tkc.model import (
    Arg,
    ConstAxis,
    DType,
    KernelSpec,
    ModelDims,
    Params,
    Role,
    Specialization,
    TensorArg,
    VarAxis,
)

DTYPES = ("bfloat16", "float32", "float8_e4m3fn")


def _specialize(dtype: str, to_e4m3: bool = False) -> Params:
    if dtype == "float8_e4m3fn":
        to_e4m3 = True
    if dtype not in DTYPES:
        raise SpecError(f"dtype is {dtype!r}; expected one of {', '.join(DTYPES)}")
    return {"dtype": dtype, "to_e4m3": to_e4m3}


def out_dtype(specialization: Specialization) -> str:
    """Dtype of the result."""
    return "float8_e4m3fn" if specialization["to_e4m3"] else specialization.str("dtype")


def _arguments(specialization: Specialization) -> tuple[Arg, ...]:
    dtype, to = DType(specialization.str("dtype")), DType(out_dtype(specialization))
    return (
        TensorArg(
            "x",
            ("num_positions", "hidden"),
            dtype,
            strides=("x_stride", 1),
            alignment_bytes=dtype.size_bytes,
            doc="a row for each position",
        ),
        _optional("x_sf", ("num_scaled",), "scale factor of each position"),
        _optional("topk_weights", ("num_weighted", "num_weights"), "weight of each pick of a token"),
        TensorArg(
            "token_topk_to_pos",
            ("num_tokens", "num_topk"),
            DType.INT32,
            alignment_bytes=4,
            doc="position of each pick; others than 0 to num_positions - 1 count as none",
        ),
        _optional("sf", ("num_sf",), "scale of the result: one, or one a token"),
        TensorArg(
            "out", ("num_tokens", "hidden"), to, Role.OUT, alignment_bytes=to.size_bytes, doc="a row for each token"
        ),
    )


def _optional(name: str, shape: tuple[str, ...], doc: str) -> TensorArg:
    return TensorArg(name, shape, DType.FLOAT32, alignment_bytes=4, doc=f"{doc}. May be empty")


def _grid(dims: ModelDims) -> Iterator[Params]:
    if dims.num_experts:
        for dtype in DTYPES:
            for to_e4m3 in (False, True):
                if not (dtype == "float8_e4m3fn" and not to_e4m3):
                    yield {"dtype": dtype, "to_e4m3": to_e4m3}


SPEC = KernelSpec(
    name="moe.reduce_fused",
    summary="Each token's row: the weighted sum of the rows at the positions of its picks.",
    definition=(
        "acc = 0; for k in order, where pick k has a position p: acc = fma(x[p], topk_weights[t, k] * x_sf[p], acc); "
        "out[t] = acc * sf, in float32, rounded once to the dtype; what is left out counts as 1"
    ),
    const=(
        ConstAxis("dtype", DTYPES, "element type of `x`"),
        ConstAxis("to_e4m3", (False, True), "element type of the result: e4m3, or that of `x`"),
    ),
    var=(
        VarAxis("num_positions", "rows of `x`"),
        VarAxis("hidden", "elements of a row; multiples of 16 bytes are faster"),
        VarAxis("x_stride", "elements from one row of `x` to the next"),
        VarAxis("num_scaled", "num_positions, or 0 without"),
        VarAxis("num_weighted", "num_tokens, or 0 without"),
        VarAxis("num_weights", "num_topk"),
        VarAxis("num_tokens", "tokens, at least 1"),
        VarAxis("num_topk", "picks a token"),
        VarAxis("num_sf", "0, 1 or num_tokens"),
    ),
    specialize=_specialize,
    arguments=_arguments,
    grid=_grid,
)
