"""The contract of ``moe.mask_indices_by_tp``."""

from __future__ import annotations

from collections.abc import Iterator

from tkc.model import (
    Arg,
    ConstAxis,
    DType,
    KernelSpec,
    ModelDims,
    Params,
    Role,
    ScalarArg,
    Specialization,
    TensorArg,
    VarAxis,
)

DTYPES = ("int64", "int32")


def _specialize(dtype: str = "int64") -> Params:
    return {"dtype": dtype}


def _arguments(specialization: Specialization) -> tuple[Arg, ...]:
    dtype = DType(specialization.str("dtype"))
    return (
        TensorArg(
            "indices", ("num_rows", "num_columns"), dtype, alignment_bytes=dtype.size_bytes, doc="physical experts"
        ),
        TensorArg(
            "masked",
            ("num_rows", "num_columns"),
            dtype,
            Role.OUT,
            alignment_bytes=dtype.size_bytes,
            doc="as this rank numbers them",
        ),
        ScalarArg("experts_per_rank", DType.INT64, "of one device, at least 1"),
        ScalarArg("num_tp_ranks", DType.INT64, "devices that hold the same tokens"),
        ScalarArg("tp_rank", DType.INT64, "of this device among them"),
    )


def _grid(dims: ModelDims) -> Iterator[Params]:
    if dims.num_experts:
        for dtype in DTYPES:
            yield {"dtype": dtype}


SPEC = KernelSpec(
    name="moe.mask_indices_by_tp",
    summary="Keep the experts of ranks with one tp rank, numbered without the others; -1 for the rest.",
    definition=(
        "r experts a rank, s tp ranks: keep i if i >= 0 and (i / r) mod s = tp_rank; v = i - tp_rank r; "
        "v - (v / (s r)) (s - 1) r, integer divisions"
    ),
    const=(ConstAxis("dtype", DTYPES, "element type of the indices"),),
    var=(VarAxis("num_rows", "at least 1"), VarAxis("num_columns", "at least 1")),
    specialize=_specialize,
    arguments=_arguments,
    grid=_grid,
)
