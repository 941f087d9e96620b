"""The contract of ``moe.inplace_unique_group_indices``."""

from __future__ import annotations

from collections.abc import Iterator

from kernel_specs.moe._routing import check_topk
from tkc.model import Arg, DType, KernelSpec, ModelDims, Params, Role, ScalarArg, Specialization, TensorArg, VarAxis

MAX_GROUPS = 2**26
"""Most groups: an index and the number of a lane share 31 bits."""


def _specialize(num_topk: int = 1) -> Params:
    check_topk(num_topk)
    return {}


def _arguments(specialization: Specialization) -> tuple[Arg, ...]:
    return (
        TensorArg(
            "group_indices",
            ("num_tokens", "num_topk"),
            DType.INT64,
            Role.INOUT,
            strides=("indices_stride", 1),
            alignment_bytes=8,
            doc="groups of each token; those that the token has already become -1",
        ),
        ScalarArg("num_groups", DType.INT32, "indices from this on, and negative ones, are left alone"),
    )


def _grid(dims: ModelDims) -> Iterator[Params]:
    if dims.num_topk:
        yield {"num_topk": dims.num_topk}


SPEC = KernelSpec(
    name="moe.inplace_unique_group_indices",
    summary="Of equal indices of a token keep the first; the others become -1.",
    definition="group_indices[t, k] = -1 where some j < k has group_indices[t, j] = group_indices[t, k]",
    const=(),
    var=(
        VarAxis("num_tokens", "tokens, at least 1"),
        VarAxis("num_topk", "indices a token, at most 32"),
        VarAxis("indices_stride", "elements from one token's indices to the next"),
    ),
    specialize=_specialize,
    arguments=_arguments,
    grid=_grid,
)
