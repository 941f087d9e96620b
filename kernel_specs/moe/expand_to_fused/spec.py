"""The contract of ``moe.expand_to_fused``."""

from __future__ import annotations

from collections.abc import Iterator

from tkc.model import Arg, DType, KernelSpec, ModelDims, Params, Role, Specialization, TensorArg, VarAxis


def _specialize() -> Params:
    return {}


def _arguments(specialization: Specialization) -> tuple[Arg, ...]:
    return (
        TensorArg(
            "x",
            ("num_tokens", "row_bytes"),
            DType.UINT8,
            strides=("x_stride", 1),
            alignment_bytes=1,
            doc="bytes of each token's row",
        ),
        TensorArg(
            "sf",
            ("num_scaled", "num_sf"),
            DType.INT32,
            alignment_bytes=4,
            doc="words of each token's scale factors. May be empty",
        ),
        TensorArg(
            "token_topk_to_pos",
            ("num_tokens", "num_topk"),
            DType.INT32,
            alignment_bytes=4,
            doc="where each pick of a token goes; others than 0 to num_positions - 1 go nowhere",
        ),
        TensorArg(
            "pos_to_expert",
            ("num_positions",),
            DType.INT32,
            alignment_bytes=4,
            doc="negative for padding, which becomes zero",
        ),
        TensorArg(
            "out", ("num_positions", "row_bytes"), DType.UINT8, Role.INOUT, alignment_bytes=1, doc="rows by position"
        ),
        TensorArg(
            "out_sf",
            ("num_scaled_positions", "num_sf"),
            DType.INT32,
            Role.INOUT,
            strides=("out_sf_stride_pos", "out_sf_stride"),
            alignment_bytes=4,
            doc="their scale factors",
        ),
    )


def _grid(dims: ModelDims) -> Iterator[Params]:
    if dims.num_experts:
        yield {}


SPEC = KernelSpec(
    name="moe.expand_to_fused",
    summary="Copy each token's row, and its scale factors, to the positions of its picks; padding becomes zero.",
    definition="out[token_topk_to_pos[t, k]] = x[t], bit for bit; out[p] = 0 where pos_to_expert[p] < 0",
    const=(),
    var=(
        VarAxis("num_tokens", "tokens"),
        VarAxis("row_bytes", "bytes of a row; multiples of 16 are faster"),
        VarAxis("x_stride", "bytes from one row to the next"),
        VarAxis("num_scaled", "num_tokens, or 0 without scale factors"),
        VarAxis("num_sf", "words of scale factors of a row"),
        VarAxis("num_topk", "picks a token"),
        VarAxis("num_positions", "rows of `out`, at least 1"),
        VarAxis("num_scaled_positions", "num_positions, or 0 without scale factors"),
        VarAxis("out_sf_stride_pos", "words from one position's scale factors to the next"),
        VarAxis("out_sf_stride", "words from one scale factor of a position to the next"),
    ),
    specialize=_specialize,
    arguments=_arguments,
    grid=_grid,
)
