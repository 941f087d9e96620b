"""Contract of `batched_transpose`."""

from __future__ import annotations

from collections.abc import Iterable

from tkc.model import (
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

DTYPES = {1: DType.FLOAT8_E4M3FN, 2: DType.BFLOAT16, 4: DType.FLOAT32, 8: DType.INT64}
"""Element type that an artifact takes, by size in bytes: the commonest of each size, so that its tensors are
passed as they are. Tensors of another type of that size are passed as views, which costs the host 1.5 µs."""


def specialize(size_bytes: int) -> Params:
    """A transpose moves bits: only the size of an element is compiled in."""
    return {"size_bytes": size_bytes}


def arguments(specialization: Specialization) -> tuple[TensorArg, ...]:
    size_bytes = specialization.int("size_bytes")
    dtype = DTYPES[size_bytes]
    return (
        TensorArg(
            "x",
            ("num_batches", "num_rows", "num_columns"),
            dtype,
            strides=("stride_batch", "stride_row", 1),
            alignment_bytes=size_bytes,
            doc="what to transpose",
        ),
        TensorArg(
            "out",
            ("num_batches", "num_columns", "num_rows"),
            dtype,
            Role.OUT,
            alignment_bytes=16,
            doc="contiguous",
        ),
    )


def grid(dims: ModelDims) -> Iterable[Params]:
    """Activations, their quantised forms, and float32 scale factors or gradients; any shape."""
    sizes = {1: bool(dims.quant), 2: True, 4: True}
    return tuple({"size_bytes": size} for size, wanted in sizes.items() if wanted)


SPEC = KernelSpec(
    name="transpose.batched_transpose",
    summary="Transposes of the last two dimensions, for any element type of 1, 2, 4 or 8 bytes",
    definition="out[b, n, m] = x[b, m, n], bit for bit",
    const=(
        ConstAxis(
            "size_bytes",
            tuple(DTYPES),
            "threads move vectors of 16 bytes: how many elements they hold, and how they are shuffled, depends on it",
        ),
    ),
    var=(
        VarAxis("num_batches", "matrices"),
        VarAxis("num_rows", "rows of each matrix of `x`"),
        VarAxis("num_columns", "columns of each matrix of `x`"),
        VarAxis("stride_batch", "elements from one matrix of `x` to the next"),
        VarAxis("stride_row", "elements from one row of `x` to the next"),
    ),
    specialize=specialize,
    arguments=arguments,
    grid=grid,
)
