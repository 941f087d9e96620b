"""The contract of ``moe.moe_topk_gate_backward``."""

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
    ScalarArg,
    Specialization,
    TensorArg,
    Tolerance,
    VarAxis,
)

SCORING_FUNCS = ("sqrtsoftplus", "sigmoid")
"""Scoring functions that have a derivative here: those that act on each logit alone."""


def _specialize(num_experts: int, num_topk: int, scoring_func: str = "sqrtsoftplus") -> Params:
    check_topk(num_topk, num_experts)
    return {"max_experts": expert_bucket(num_experts), "scoring_func": scoring_func}


def _arguments(specialization: Specialization) -> tuple[Arg, ...]:
    return (
        TensorArg(
            "scores",
            ("num_tokens", "num_experts"),
            DType.FLOAT32,
            strides=("scores_stride", 1),
            alignment_bytes=4,
            doc="of all experts, as the gate wrote them",
        ),
        TensorArg(
            "topk_idx",
            ("num_tokens", "num_topk"),
            DType.INT64,
            alignment_bytes=8,
            doc="logical experts picked; others than 0 to num_experts - 1 count as none",
        ),
        _picks("topk_weights", "that the gate gave them"),
        _picks("grad_topk_weights", "gradient of the loss by these weights"),
        TensorArg(
            "mask",
            ("num_masked",),
            DType.BOOL,
            alignment_bytes=1,
            doc="tokens that count in the balance loss. May be empty",
        ),
        TensorArg(
            "grad_scores_sum",
            ("num_sums", "num_summed"),
            DType.FLOAT32,
            alignment_bytes=4,
            doc="gradient by the sums of normalised scores over equal runs of tokens. May be empty",
        ),
        TensorArg(
            "grad_logits",
            ("num_tokens", "num_experts"),
            DType.FLOAT32,
            Role.OUT,
            alignment_bytes=4,
            doc="by the logits",
        ),
        ScalarArg("tokens_per_sum", DType.INT32, "tokens of one run, at least 1"),
        ScalarArg("routed_scaling_factor", DType.FLOAT32, "of the weights of routed experts"),
    )


def _picks(name: str, doc: str) -> TensorArg:
    return TensorArg(name, ("num_tokens", "num_topk"), DType.FLOAT32, alignment_bytes=4, doc=doc)


def _grid(dims: ModelDims) -> Iterator[Params]:
    if dims.num_experts and dims.num_topk:
        for scoring_func in dims.scoring_funcs:
            if scoring_func in SCORING_FUNCS:
                yield {"num_experts": dims.num_experts, "num_topk": dims.num_topk, "scoring_func": scoring_func}


SPEC = KernelSpec(
    name="moe.moe_topk_gate_backward",
    summary="Gradient of the gate's weights, and of a balance loss, by the logits.",
    definition=(
        "u scores, g gradients, w weights of the picks: D = 1e-20 + sum u_j; route_e = sum over picks j of e, in "
        "order, of (scale g_j - sum g_i w_i) / D; aux_e = (h_e - sum h_i u_i / S) / S for tokens of the mask, S the "
        "sum of all scores; grad_e = u'(x_e) (route_e + aux_e), with u' = (1 - exp(-u^2)) / 2u, or u (1 - u)"
    ),
    const=(
        ConstAxis("max_experts", EXPERT_BUCKETS, EXPERT_BUCKET_WHY),
        ConstAxis("scoring_func", SCORING_FUNCS, "the derivative is evaluated for every expert of every token"),
    ),
    var=(
        VarAxis("num_tokens", "tokens, at least 1"),
        VarAxis("num_experts", "experts, at most max_experts"),
        VarAxis("num_topk", "picks a token, at most 32"),
        VarAxis("scores_stride", "elements from one token's scores to the next"),
        VarAxis("num_masked", "num_tokens, or 0 without a balance loss"),
        VarAxis("num_sums", "runs of tokens"),
        VarAxis("num_summed", "num_experts, or 0 without"),
    ),
    specialize=_specialize,
    arguments=_arguments,
    grid=_grid,
    tolerance={"grad_logits": Tolerance(rtol=1e-4, atol=1e-5)},
)
