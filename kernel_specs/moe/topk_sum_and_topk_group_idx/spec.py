"""The contract of ``moe.topk_sum_and_topk_group_idx``."""

from __future__ import annotations

from collections.abc import Iterator

from kernel_specs.moe._routing import EXPERT_BUCKET_WHY, EXPERT_BUCKETS, expert_bucket
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


def _specialize(num_experts: int) -> Params:
    return {"max_experts": expert_bucket(num_experts)}


def _arguments(specialization: Specialization) -> tuple[Arg, ...]:
    return (
        TensorArg(
            "scores",
            ("num_tokens", "num_groups", "group_size"),
            DType.FLOAT32,
            alignment_bytes=4,
            doc="of experts, group by group",
        ),
        TensorArg(
            "group_idx",
            ("num_tokens", "num_topk_groups"),
            DType.INT64,
            Role.OUT,
            alignment_bytes=8,
            doc="best groups, best first; the smaller index wins a tie",
        ),
        ScalarArg("num_topk_sum", DType.INT32, "scores that make a group's value: its best, or its two best"),
    )


def _grid(dims: ModelDims) -> Iterator[Params]:
    if dims.num_experts:
        yield {"num_experts": dims.num_experts}


SPEC = KernelSpec(
    name="moe.topk_sum_and_topk_group_idx",
    summary="Indices of the best groups of experts, by their best score or the sum of their two best.",
    definition="value of a group: its largest score, or the sum of its two largest; NaN counts as minus infinity",
    const=(ConstAxis("max_experts", EXPERT_BUCKETS, EXPERT_BUCKET_WHY),),
    var=(
        VarAxis("num_tokens", "tokens, at least 1"),
        VarAxis("num_groups", "of experts, 1 to 32"),
        VarAxis("group_size", "experts of a group; those of all groups are at most max_experts"),
        VarAxis("num_topk_groups", "groups to give, at most num_groups"),
    ),
    specialize=_specialize,
    arguments=_arguments,
    grid=_grid,
)
