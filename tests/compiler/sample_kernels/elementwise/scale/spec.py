"""``out = x * factor``, row by row."""

from __future__ import annotations

from collections.abc import Iterable

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


def _specialize(dtype: str = "float32", width: int = 256) -> Params:
    return {"dtype": dtype, "width": width}


def _arguments(specialization: Specialization) -> tuple[Arg, ...]:
    dtype, width = DType(specialization.str("dtype")), specialization.int("width")
    return (
        TensorArg("x", ("num_rows", width), dtype, strides=("stride_x", 1)),
        TensorArg("out", ("num_rows", width), dtype, role=Role.OUT),
        ScalarArg("factor", DType.FLOAT32),
        ScalarArg("bias", DType.INT32),
    )


def _grid(model: ModelDims) -> Iterable[Params]:
    yield {"dtype": "float32", "width": model.hidden}


SPEC = KernelSpec(
    name="elementwise.scale",
    summary="Multiply every element by a number, and add one.",
    definition="out = x * factor + bias",
    const=(
        ConstAxis("dtype", ("float32", "float16", "bfloat16"), "the type is part of the code"),
        ConstAxis("width", (256, 512), "makes row lengths known"),
    ),
    var=(VarAxis("num_rows", "rows"), VarAxis("stride_x", "elements between rows of x")),
    specialize=_specialize,
    arguments=_arguments,
    grid=_grid,
)
