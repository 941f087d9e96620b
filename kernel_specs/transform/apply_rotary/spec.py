"""Contract of `apply_rotary`."""

from __future__ import annotations

from collections.abc import Iterable
from itertools import product

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


def specialize(dtype: str, interleaved: bool = False, positions: str | None = None) -> Params:
    """Everything else is free at launch: tokens, heads, their size, every stride, the sense of rotation."""
    return {"dtype": dtype, "interleaved": interleaved, "positions": positions}


def arguments(specialization: Specialization) -> tuple[Arg, ...]:
    dtype = DType(specialization.str("dtype"))
    positions = TensorArg(
        "positions",
        ("num_batches", "num_tokens"),
        DType(specialization["positions"] or DType.INT32),
        strides=("positions_stride_batch", "positions_stride_token"),
        alignment_bytes=4,
        doc="row of the cache for each token, before `seqlen_offset` is added",
    )
    return (
        _heads("query", "num_query_heads", dtype),
        _heads("key", "num_key_heads", dtype),
        TensorArg(
            "cos_sin_cache",
            ("num_positions", "head_dim"),
            DType.FLOAT32,
            strides=("cache_stride", 1),
            alignment_bytes=4,
            doc="cosines of a position's angles, then their sines",
        ),
        *((positions,) if specialization["positions"] else ()),
        ScalarArg("rotate_key", DType.INT32, doc="1, or 0 to leave `key` alone (it is then any tensor that fits)"),
        ScalarArg("sine_sign", DType.FLOAT32, doc="1, or -1 to rotate back"),
        ScalarArg("seqlen_offset", DType.INT64, doc="added to every position"),
    )


def _heads(name: str, num_heads: str, dtype: DType) -> TensorArg:
    return TensorArg(
        name,
        ("num_batches", "num_tokens", num_heads, "head_dim"),
        dtype,
        Role.INOUT,
        strides=(f"{name}_stride_batch", f"{name}_stride_token", f"{name}_stride_head", 1),
        alignment_bytes=dtype.size_bytes,
        doc="rotated in place",
    )


def grid(dims: ModelDims) -> Iterable[Params]:
    """Queries and keys of a model that rotates part of each head; the rotated size is free."""
    if not dims.rope_dims:
        return ()
    calls = product(dims.dtypes, (False, True), (None, "int32", "int64"))
    return tuple({"dtype": dtype, "interleaved": pairs, "positions": index} for dtype, pairs, index in calls)


SPEC = KernelSpec(
    name="transform.apply_rotary",
    summary="Rotary position embedding of queries and keys, in place, forwards or back",
    definition="pairs (a, b) become (fma(a, c, -(b s)), fma(a, s, b c)), rounded once to dtype; "
    "pair j of a head is elements (2j, 2j + 1) if interleaved, else (j, j + head_dim / 2)",
    const=(
        ConstAxis("dtype", ("bfloat16", "float32"), "element type of the tensors"),
        ConstAxis("interleaved", (False, True), "decides which registers of a thread hold a pair"),
        ConstAxis("positions", (None, "int32", "int64"), "whether there is such a tensor, and its element type"),
    ),
    var=(
        VarAxis("num_batches", "sequences"),
        VarAxis("num_tokens", "tokens of each sequence"),
        VarAxis("num_query_heads", "heads of `query`"),
        VarAxis("num_key_heads", "heads of `key`"),
        VarAxis("head_dim", "elements of a head, even; all of them are rotated"),
        VarAxis("num_positions", "rows of the cache"),
        VarAxis("query_stride_batch", "elements from one sequence of `query` to the next"),
        VarAxis("query_stride_token", "elements from one token of `query` to the next"),
        VarAxis("query_stride_head", "elements from one head of `query` to the next"),
        VarAxis("key_stride_batch", "elements from one sequence of `key` to the next"),
        VarAxis("key_stride_token", "elements from one token of `key` to the next"),
        VarAxis("key_stride_head", "elements from one head of `key` to the next"),
        VarAxis("cache_stride", "elements from one row of the cache to the next"),
        VarAxis("positions_stride_batch", "elements from one sequence of `positions` to the next"),
        VarAxis("positions_stride_token", "elements from one token of `positions` to the next"),
        VarAxis("rotate_key", "whether `key` is rotated"),
        VarAxis("sine_sign", "sense of rotation"),
        VarAxis("seqlen_offset", "added to every position"),
    ),
    specialize=specialize,
    arguments=arguments,
    grid=grid,
)
