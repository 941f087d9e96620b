"""The contract of ``moe.group_count``."""

from __future__ import annotations

from collections.abc import Iterator

from tkc.model import Arg, DType, KernelSpec, ModelDims, Params, Role, Specialization, TensorArg, VarAxis


def _specialize() -> Params:
    return {}


def _arguments(specialization: Specialization) -> tuple[Arg, ...]:
    return (
        TensorArg("group_idx", ("num_indices",), DType.INT64, alignment_bytes=8, doc="groups; others are not counted"),
        TensorArg("partial_counts", ("num_slices", "num_groups"), DType.INT32, Role.OUT, doc="counts of equal slices"),
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
        VarAxis("num_indices", "at least 1"),
        VarAxis("num_slices", "rows of scratch memory"),
        VarAxis("num_groups", "at least 1"),
    ),
    specialize=_specialize,
    arguments=_arguments,
    grid=_grid,
)
