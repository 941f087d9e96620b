"""The contract of ``moe.moe_topk_gate_forward``."""

from __future__ import annotations

from collections.abc import Iterator

from kernel_specs.moe._routing import (
    EXPERT_BUCKET_WHY,
    EXPERT_BUCKETS,
    SCORING_FUNCS,
    check_topk,
    expert_bucket,
)
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


def _specialize(num_experts: int, num_topk: int, scoring_func: str = "sqrtsoftplus") -> Params:
    check_topk(num_topk, num_experts)
    return {"max_experts": expert_bucket(num_experts), "scoring_func": scoring_func}


def _arguments(specialization: Specialization) -> tuple[Arg, ...]:
    return (
        TensorArg(
            "logits",
            ("num_tokens", "num_experts"),
            DType.FLOAT32,
            strides=("logits_stride", 1),
            alignment_bytes=4,
            doc="of the router, one an expert",
        ),
        _optional("bias", ("num_biases",), DType.FLOAT32, "added to the scores when experts are ranked"),
        _optional("image_bias", ("num_image_biases",), DType.FLOAT32, "used in place of `bias` for image tokens"),
        _optional("image_token_mask", ("num_image_flags",), DType.BOOL, "whether a token is of an image"),
        _optional("mask", ("num_masked",), DType.BOOL, "whether a token is routed at all"),
        _optional("fix_routing_mask", ("num_fixed",), DType.BOOL, "whether `unmapped_topk_idx` holds the picks"),
        _optional("force_random", ("num_random",), DType.BOOL, "whether a token goes to random experts"),
        _optional(
            "to_physical_map",
            ("num_mapped", "num_replicas"),
            DType.INT32,
            "physical index of each replica of each logical expert",
        ),
        _optional("logical_count", ("num_mapped",), DType.INT32, "replicas of each logical expert"),
        TensorArg(
            "unmapped_topk_idx",
            ("num_unmapped", "num_unmapped_topk"),
            DType.INT64,
            Role.INOUT,
            strides=("unmapped_stride", 1),
            alignment_bytes=8,
            doc="logical experts picked; read for tokens whose routing is fixed, else written. May be empty",
        ),
        TensorArg(
            "scores",
            ("num_scored", "num_scores"),
            DType.FLOAT32,
            Role.INOUT,
            alignment_bytes=4,
            doc="of every expert, 0 for tokens that are not routed by them. May be empty",
        ),
        TensorArg(
            "topk_idx",
            ("num_tokens", "num_slots"),
            DType.INT64,
            Role.OUT,
            alignment_bytes=8,
            doc="experts picked, best first, then the shared ones; -1 for none",
        ),
        TensorArg(
            "topk_weights",
            ("num_tokens", "num_slots"),
            DType.FLOAT32,
            Role.OUT,
            alignment_bytes=4,
            doc="their normalised scores, times the scale; 1 for shared experts; 0 for none",
        ),
        ScalarArg("num_topk", DType.INT32, "routed picks a token"),
        ScalarArg("num_groups", DType.INT32, "groups of experts, 0 if they do not compete"),
        ScalarArg("num_topk_groups", DType.INT32, "groups whose experts compete"),
        ScalarArg("ep_rank", DType.INT32, "seed of the random experts, and start of the turn of replicas"),
        ScalarArg("experts_per_rank", DType.INT32, "of one device; 0 if experts are not split over tp ranks"),
        ScalarArg("num_tp_ranks", DType.INT32, "devices that hold the same tokens"),
        ScalarArg("tp_rank", DType.INT32, "of this device among them"),
        ScalarArg("in_order", DType.INT32, "1: sum the scores one after another from 1e-20, 0: as a tree"),
        ScalarArg("routed_scaling_factor", DType.FLOAT32, "of the weights of routed experts"),
    )


def _optional(name: str, shape: tuple[str, ...], dtype: DType, doc: str) -> TensorArg:
    return TensorArg(name, shape, dtype, alignment_bytes=dtype.size_bytes, doc=f"{doc}. May be empty")


def _grid(dims: ModelDims) -> Iterator[Params]:
    if dims.num_experts and dims.num_topk:
        for scoring_func in dims.scoring_funcs:
            yield {"num_experts": dims.num_experts, "num_topk": dims.num_topk, "scoring_func": scoring_func}


SPEC = KernelSpec(
    name="moe.moe_topk_gate_forward",
    summary="Route tokens to their best experts: scores, picks, normalised weights, physical replicas.",
    definition=(
        "s = sqrt(softplus(x)), sigmoid(x) or softmax(x); key = s + bias (softmax: x + bias); groups compete by "
        "the sum of their two best keys; picks are the num_topk largest keys, the smaller index first among "
        "equals; weight_j = s_j / (1e-20 + sum of the picks' s) * scale; picked expert e becomes "
        "to_physical_map[e, (ep_rank + 23333 token) mod logical_count[e]]. Random experts: Philox4x32-10."
    ),
    const=(
        ConstAxis("max_experts", EXPERT_BUCKETS, EXPERT_BUCKET_WHY),
        ConstAxis(
            "scoring_func",
            SCORING_FUNCS,
            "the function is evaluated for every expert of every token; a model has one, so it costs no artifact",
        ),
    ),
    var=(
        VarAxis("num_tokens", "tokens, at least 1"),
        VarAxis("num_experts", "experts, at most max_experts"),
        VarAxis("num_slots", "routed picks and shared experts a token, at most 32"),
        VarAxis("logits_stride", "elements from one token's logits to the next"),
        VarAxis("num_biases", "num_experts, or 0 without"),
        VarAxis("num_image_biases", "num_experts, or 0 without"),
        VarAxis("num_image_flags", "num_tokens, or 0 without"),
        VarAxis("num_masked", "num_tokens, or 0 without"),
        VarAxis("num_fixed", "num_tokens, or 0 without"),
        VarAxis("num_random", "num_tokens, or 0 without"),
        VarAxis("num_mapped", "logical experts, shared ones too, or 0 without a map"),
        VarAxis("num_replicas", "room for replicas of one expert"),
        VarAxis("num_unmapped", "num_tokens, or 0 without"),
        VarAxis("num_unmapped_topk", "num_topk"),
        VarAxis("unmapped_stride", "elements from one token's logical picks to the next"),
        VarAxis("num_scored", "num_tokens, or 0 without"),
        VarAxis("num_scores", "num_experts"),
    ),
    specialize=_specialize,
    arguments=_arguments,
    grid=_grid,
    tolerance={"topk_weights": Tolerance(rtol=4e-6, atol=1e-12), "scores": Tolerance(rtol=2e-6, atol=1e-12)},
)
