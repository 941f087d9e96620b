"""The contract of ``moe.normalize_weight``."""

from __future__ import annotations

from collections.abc import Iterator

from kernel_specs.moe._routing import check_topk
from tkc.model import Arg, DType, KernelSpec, ModelDims, Params, Role, Specialization, TensorArg, VarAxis


def _specialize(num_topk: int) -> Params:
    check_topk(num_topk)
    return {}


def _arguments(specialization: Specialization) -> tuple[Arg, ...]:
    return (
        TensorArg(
            "topk_weights",
            ("num_tokens", "num_topk"),
            DType.FLOAT32,
            strides=("weights_stride", 1),
            alignment_bytes=4,
            doc="weights of the experts picked for each token",
        ),
        TensorArg(
            "denominator",
            ("num_tokens",),
            DType.FLOAT32,
            Role.OUT,
            doc="sum of each token's weights, plus 1e-20",
        ),
        TensorArg(
            "normalized_weights",
            ("num_tokens", "num_topk"),
            DType.FLOAT32,
            Role.OUT,
            doc="weights divided by the denominator",
        ),
    )


def _grid(dims: ModelDims) -> Iterator[Params]:
    if dims.num_topk:
        yield {"num_topk": dims.num_topk}


SPEC = KernelSpec(
    name="moe.normalize_weight",
    summary="Each token's routing weights divided by their sum.",
    definition=(
        "s_j += s_(j xor m) for m = 16, 8, 4, 2, 1, where both exist; denominator = 1e-20 + s_0; "
        "normalized_weights = topk_weights / denominator, all in float32 with correct rounding."
    ),
    const=(),
    var=(
        VarAxis("num_tokens", "tokens, at least 1"),
        VarAxis("num_topk", "picks a token, at most 32"),
        VarAxis("weights_stride", "elements from one token's weights to the next"),
    ),
    specialize=_specialize,
    arguments=_arguments,
    grid=_grid,
)
