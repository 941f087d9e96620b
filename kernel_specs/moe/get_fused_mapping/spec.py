"""The contract of ``moe.get_fused_mapping``."""

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
            ("num_tokens", "num_topk"),
            DType.INT64,
            alignment_bytes=8,
            doc="experts picked for each token; others than 0 to num_experts - 1 get no position",
        ),
        TensorArg(
            "slice_counts",
            ("num_slice_counts",),
            DType.INT32,
            Role.OUT,
            alignment_bytes=16,
            doc="scratch: how often each slice of the picks names each expert, 0 for those past the last",
        ),
        _out("pos_to_expert", ("num_positions",), "expert of each position, -1 for padding"),
        _out("pos_to_token", ("num_positions",), "its token"),
        _out("pos_to_token_topk", ("num_positions",), "its pick: token * num_topk + k"),
        _out("token_topk_to_pos", ("num_tokens", "num_topk"), "position of each pick, -1 for none"),
        _out("expert_start", ("num_experts",), "first position of each expert"),
        _out("expert_end", ("num_experts",), "one past its last, padding included"),
        _out("num_tokens_per_expert", ("num_experts",), "its positions, padding included"),
        ScalarArg("alignment", DType.INT32, "what the positions of each expert are a multiple of"),
    )


def _out(name: str, shape: tuple[str, ...], doc: str) -> TensorArg:
    return TensorArg(name, shape, DType.INT32, Role.OUT, alignment_bytes=4, doc=doc)


def _grid(dims: ModelDims) -> Iterator[Params]:
    if dims.num_experts:
        yield {}


SPEC = KernelSpec(
    name="moe.get_fused_mapping",
    summary="Where each pick of each token goes when tokens are laid out by expert.",
    definition=(
        "a stable counting sort of the picks by expert, then token, then k; each expert's positions are padded to a "
        "multiple of the alignment; padding is -1"
    ),
    const=(),
    var=(
        VarAxis("num_tokens", "tokens, at least 1"),
        VarAxis("num_topk", "picks a token"),
        VarAxis("num_experts", "at most 1024"),
        VarAxis("num_positions", "room; picks whose position is past it get none"),
        VarAxis(
            "num_slice_counts", "for each slice num_experts rounded up to a multiple of 4, or 0 to sort without slices"
        ),
    ),
    specialize=_specialize,
    arguments=_arguments,
    grid=_grid,
)
