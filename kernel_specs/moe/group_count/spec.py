"""The contract of ``moe.group_count``."""

from __future__ import annotations

from collections.abc import Iterator

from tkc.model import Arg, DType, KernelSpec, ModelDims, Params, Role, Specialization, TensorArg, VarAxis


def _specialize() -> Params:
    return {}


def _arguments(specialization: Specialization) -> tuple[Arg, ...]:
    return (
        TensorArg(
            "group_idx",
            ("num_rows", "num_columns"),
            DType.INT64,
            alignment_bytes=8,
            doc="groups; others are not counted",
        ),
        TensorArg(
            "partial_counts", ("num_partial_counts",), DType.INT32, Role.OUT, doc="counts of equal slices, in turn"
        ),
        TensorArg("counts", ("num_groups",), DType.INT32, Role.OUT, alignment_bytes=4, doc="how often each occurs"),
    )


def _grid(dims: ModelDims) -> Iterator[Params]:
    if dims.num_experts:
        yield {}


SPEC = KernelSpec(
    name="moe.group_count",
    summary="How often each group occurs among indices.",
    definition="counts_g is the number of i with group_idx_i = g; indices outside [0, num_groups) are not counted",
    const=(),
    var=(
        VarAxis("num_rows", "of indices, at least 1"),
        VarAxis("num_columns", "of indices, at least 1"),
        VarAxis("num_partial_counts", "num_groups for each slice, or 0 to count without slices"),
        VarAxis("num_groups", "at least 1"),
    ),
    specialize=_specialize,
    arguments=_arguments,
    grid=_grid,
)
