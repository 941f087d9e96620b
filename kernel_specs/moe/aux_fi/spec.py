"""The contract of ``moe.aux_fi``."""

from __future__ import annotations

from collections.abc import Iterator

from tkc.model import (
    Arg,
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


def _specialize() -> Params:
    return {}


def _arguments(specialization: Specialization) -> tuple[Arg, ...]:
    return (
        TensorArg(
            "topk_idx",
            ("num_rows", "num_columns"),
            DType.INT64,
            alignment_bytes=8,
            doc="experts; others are not counted",
        ),
        TensorArg(
            "partial_counts", ("num_partial_counts",), DType.INT32, Role.OUT, doc="counts of equal slices, in turn"
        ),
        TensorArg("fi", ("num_experts",), DType.FLOAT32, Role.OUT, alignment_bytes=4, doc="relative load of each"),
        ScalarArg("divisor", DType.INT64, "picks that count for an expert's share: num_tokens * num_aux_topk"),
    )


def _grid(dims: ModelDims) -> Iterator[Params]:
    if dims.num_experts:
        yield {}


SPEC = KernelSpec(
    name="moe.aux_fi",
    summary="Relative load of each expert, for a balance loss: 1 where all get the same.",
    definition="fi_e = fp32(count_e * num_experts) / fp32(num_tokens * num_aux_topk), in int64 until there",
    const=(),
    var=(
        VarAxis("num_rows", "of indices, at least 1"),
        VarAxis("num_columns", "of indices, at least 1"),
        VarAxis("num_partial_counts", "num_experts for each slice, or 0 to count without slices"),
        VarAxis("num_experts", "at least 1"),
    ),
    specialize=_specialize,
    arguments=_arguments,
    grid=_grid,
)
