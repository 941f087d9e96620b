"""What the operators of the quantised family check before they launch; everything else the launch checks."""

from __future__ import annotations

from typing import TypeAlias

import torch

from kernel_specs.config import get_amax_clamp_for_quant
from kernel_specs.quant._formats import BLOCK_WIDTHS, LARGEST, sf_kind
from kernel_specs.quant._layouts import sf_shape
from tkc.errors import ArgumentError, unknown_name

QuantTensor: TypeAlias = tuple[torch.Tensor, torch.Tensor]
"""Quantised data and scale factors: the value is their product. int8 data holds pairs of e2m1."""

PLAIN = {torch.bfloat16: "bfloat16", torch.float32: "float32"}
QUANTISED = {torch.float8_e4m3fn: "e4m3", torch.int8: "e2m1"}
_SF_KINDS = {torch.float32: "float32", torch.float8_e4m3fn: "e4m3", torch.int32: "ue8m0"}


def kind_of_sf(round_sf: bool, use_packed_ue8m0: bool, use_e4m3_sf: bool) -> str:
    """The kind of scale factors that the flags ask for. Raises ArgumentError if they contradict."""
    try:
        return sf_kind(round_sf, use_packed_ue8m0, use_e4m3_sf)
    except ValueError as error:
        raise ArgumentError(str(error), argument="use_packed_ue8m0" if use_packed_ue8m0 else "use_e4m3_sf") from None


def check_block(fmt: str, num_per_channels: int) -> None:
    """Raise ArgumentError unless elements of `fmt` can share a scale factor `num_per_channels` at a time."""
    if fmt not in LARGEST:
        raise ArgumentError(unknown_name("format", str(fmt), LARGEST), argument="fmt")
    if num_per_channels not in BLOCK_WIDTHS:
        raise ArgumentError(
            f"num_per_channels is {num_per_channels!r}; expected one of {', '.join(map(str, BLOCK_WIDTHS))}",
            argument="num_per_channels",
        )


def plain_rows(x: torch.Tensor, multiple: int = 64) -> tuple[int, int]:
    """Rows and columns of an input that is not quantised. Raises ArgumentError unless it is 2-D and fits."""
    if not isinstance(x, torch.Tensor) or x.dim() != 2 or x.dtype not in PLAIN:
        raise ArgumentError(f"x is {_described(x)}; expected a 2-D tensor of bfloat16 or float32", argument="x")
    rows, columns = x.shape
    _check_columns(columns, multiple)
    return rows, columns


def quantised_rows(x: QuantTensor, block: tuple[int, int] | None, multiple: int = 64) -> tuple[int, int, str]:
    """Rows, columns and the kind of scale factors of a quantised input in blocks of `block`.

    Raises ArgumentError unless data and scale factors have legal dtypes and shapes that fit each other.
    """
    data, sf = x if len(x) == 2 else (None, None)
    if not (isinstance(data, torch.Tensor) and isinstance(sf, torch.Tensor) and data.dim() == sf.dim() == 2):
        raise ArgumentError("x is a tuple; expected (data, sf), two 2-D tensors", argument="x")
    kind = _SF_KINDS.get(sf.dtype)
    if data.dtype not in QUANTISED or kind is None:
        raise ArgumentError(
            f"x has data of {data.dtype} and scale factors of {sf.dtype}; expected float8_e4m3fn or int8 (pairs of "
            "e2m1), with scale factors of float32, float8_e4m3fn or int32 (packed UE8M0)",
            argument="x",
        )
    if block is None or len(block) != 2 or min(block) < 1:
        raise ArgumentError(
            f"x_block_size is {block!r}; a quantised x needs (rows, columns) that share a scale factor",
            argument="x_block_size",
        )
    rows, columns = data.shape
    if data.dtype is torch.int8:
        columns *= 2
    _check_columns(columns, multiple)
    if sf.shape != (want := sf_shape(rows, columns, block, kind)):
        raise ArgumentError(
            f"x has scale factors of shape {list(sf.shape)}; data [{rows}, {columns}] in blocks of {list(block)} has "
            f"{list(want)} {'words' if kind == 'ue8m0' else 'of them'}",
            argument="x",
        )
    return rows, columns, kind


def aligned_rows(x: torch.Tensor) -> torch.Tensor:
    """`x`, or a copy of it if its rows do not begin at multiples of 16 bytes from each other (below 2**31 elements)."""
    stride, step = x.stride()
    return x if stride * x.itemsize % 16 == 0 and stride < 1 << 31 and step == 1 else _copied(x)


def _copied(x: torch.Tensor) -> torch.Tensor:
    if x.shape[0] < 2 and x.stride(1) == 1:
        return x.as_strided(x.shape, (-(-x.shape[1] // 64) * 64, 1))  # a stride that is never used may be anything
    return x.contiguous()


def check_given_sf(sf: torch.Tensor | None, column_major: bool, argument: str) -> None:
    """Raise ArgumentError if scale factors are given where the operator must lay them out itself."""
    if sf is not None and column_major:
        raise ArgumentError(
            f"{argument} is given with use_tma_aligned_col_major_sf=True; column-major scale factors are padded, so "
            f"the operator allocates them. Leave out {argument}, or take row-major ones",
            argument=argument,
        )


def clamp_of(fmt: str, kind: str) -> float:
    """The least maximum of a block, as it is set."""
    return get_amax_clamp_for_quant(fmt, kind == "e4m3")


def _check_columns(columns: int, multiple: int) -> None:
    if columns % multiple:
        raise ArgumentError(f"x has {columns} columns; expected a multiple of {multiple}", argument="x")


def _described(x: object) -> str:
    return f"{x.dtype} of shape {list(x.shape)}" if isinstance(x, torch.Tensor) else type(x).__name__
