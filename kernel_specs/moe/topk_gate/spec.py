"""The contract of ``moe.topk_gate``."""

from __future__ import annotations

from collections.abc import Iterator

from kernel_specs.moe._routing import EXPERT_BUCKET_WHY, EXPERT_BUCKETS, check_topk, expert_bucket
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


def _specialize(num_experts: int, num_topk: int) -> Params:
    check_topk(num_topk, num_experts)
    return {"max_experts": expert_bucket(num_experts)}


def _arguments(specialization: Specialization) -> tuple[Arg, ...]:
    return (
        TensorArg(
            "scores",
            ("num_tokens", "num_experts"),
            DType.FLOAT32,
            strides=("scores_stride", 1),
            alignment_bytes=4,
            doc="one score an expert; larger is better",
        ),
        TensorArg(
            "topk_idx",
            ("num_tokens", "num_topk"),
            DType.INT64,
            Role.OUT,
            doc="experts picked, best first; the smaller index wins a tie",
        ),
    )


def _grid(dims: ModelDims) -> Iterator[Params]:
    if dims.num_experts and dims.num_topk:
        yield {"num_experts": dims.num_experts, "num_topk": dims.num_topk}


SPEC = KernelSpec(
    name="moe.topk_gate",
    summary="Indices of the num_topk largest scores of each token, best first.",
    definition=(
        "K rounds of: take the largest remaining score, the smallest index among equals; NaN counts as minus "
        "infinity. Equal to the first K of a stable descending sort."
    ),
    const=(ConstAxis("max_experts", EXPERT_BUCKETS, EXPERT_BUCKET_WHY),),
    var=(
        VarAxis("num_tokens", "tokens, at least 1"),
        VarAxis("num_experts", "experts, at most max_experts"),
        VarAxis("num_topk", "picks a token, at most num_experts and 32"),
        VarAxis("scores_stride", "elements from one token's scores to the next"),
    ),
    specialize=_specialize,
    arguments=_arguments,
    grid=_grid,
)
