"""`apply_rotary`."""

from __future__ import annotations

import torch

from kernel_specs.config import get_pdl
from kernel_specs.transform.apply_rotary.spec import SPEC
from tkc.errors import ArgumentError
from tkc.runtime import KernelTable
from tkc.runtime.dispatch import settings

__all__ = ["apply_rotary"]

_KERNELS = KernelTable(SPEC)
_DTYPES = {torch.bfloat16: "bfloat16", torch.float32: "float32"}
_INDEX_DTYPES = {torch.int32: "int32", torch.int64: "int64"}
_OFFSET_LIMIT = 1 << 62  # a sum with any int64 position that wraps stays outside every cache


def apply_rotary(
    query: torch.Tensor,
    cos_sin_cache: torch.Tensor,
    key: torch.Tensor | None = None,
    positions: torch.Tensor | None = None,
    interleaved: bool = False,
    conjugate: bool = False,
    seqlen_offset: int = 0,
) -> None:
    """Rotate the heads of `query` and `key`, in place, by the angles of their tokens' positions.

    Pair (a, b) of a head becomes ``fma(a, c, -(b s))`` and ``fma(a, s, b c)``, in float32, rounded once to
    the dtype; c and s are the pair's cosine and sine in row ``seqlen_offset + position`` of the cache.

    Args:
        query: ``[T, h, d]`` or ``[B, T, h, d]``, bfloat16 or float32, d even; last stride 1, any other strides
            and any alignment (16-byte multiples are faster). To rotate part of each head, pass that slice.
        cos_sin_cache: ``[P, d]``, float32, last stride 1: d / 2 cosines, then d / 2 sines.
        key: like `query`, with its own number of heads and strides.
        positions: ``[T]`` or ``[B, T]``, int32 or int64, any strides; by default a token's place in its sequence.
        interleaved: whether pair j is elements (2j, 2j + 1) of a head, else (j, j + d / 2).
        conjugate: whether to rotate back: the sine is negated.
        seqlen_offset: added to every position.

    A row outside the cache counts as zeros, as in TileKernels, so that the head becomes zero; no memory
    outside the cache is read. With ``TKC_CHECK=1`` it is an error instead, at the price of a synchronisation.
    Without `positions` it always is one.

    Raises ArgumentError, before anything is launched, for any other rank, shape, stride, dtype or device.
    """
    _check_ranks(query, key, positions)
    if query.numel() == 0:
        if key is None or key.numel() == 0:
            return
        query, key = key, None
    _check_rows(query.shape[-3], cos_sin_cache, positions, seqlen_offset)
    if query.dim() == 3:
        query, key, positions = (None if x is None else x.unsqueeze(0) for x in (query, key, positions))
    has_key = key is not None and key.numel() > 0
    kernel = _KERNELS[query.device, get_pdl(), _dtype_of(query), bool(interleaved), _index_dtype_of(positions)]
    tensors = (query, key if has_key else query, cos_sin_cache)
    scalars = (int(has_key), -1.0 if conjugate else 1.0, seqlen_offset)
    if positions is None:
        kernel(*tensors, *scalars)
    else:
        kernel(*tensors, positions, *scalars)


def _check_ranks(query: torch.Tensor, key: torch.Tensor | None, positions: torch.Tensor | None) -> None:
    rank = query.dim()
    if rank not in (3, 4) or query.shape[-1] % 2:
        raise ArgumentError(
            f"query has shape {tuple(query.shape)}; expected [T, h, d] or [B, T, h, d] with d even",
            argument="query",
        )
    if key is not None and key.dim() != rank:
        raise ArgumentError(f"key has {key.dim()} dimensions; query has {rank}, and so must key", argument="key")
    if positions is not None and positions.dim() != rank - 2:
        raise ArgumentError(
            f"positions has shape {tuple(positions.shape)}; expected {tuple(query.shape[:-2])}, one for each token",
            argument="positions",
        )


def _check_rows(
    num_tokens: int, cos_sin_cache: torch.Tensor, positions: torch.Tensor | None, seqlen_offset: int
) -> None:
    if type(seqlen_offset) is not int or abs(seqlen_offset) > _OFFSET_LIMIT:
        raise ArgumentError(
            f"seqlen_offset is {seqlen_offset!r}; expected an int of at most 62 bits", argument="seqlen_offset"
        )
    num_positions = cos_sin_cache.shape[0] if cos_sin_cache.dim() else 0
    if positions is not None:
        if settings().check:
            _check_positions(positions, seqlen_offset, num_positions)
    elif seqlen_offset < 0 or seqlen_offset + num_tokens > num_positions:
        raise ArgumentError(
            f"seqlen_offset is {seqlen_offset} and there are {num_tokens} tokens: they need rows {seqlen_offset} "
            f"to {seqlen_offset + num_tokens - 1} of cos_sin_cache, which has {num_positions}",
            argument="seqlen_offset",
        )


def _check_positions(positions: torch.Tensor, seqlen_offset: int, num_positions: int) -> None:
    rows = positions.long() + seqlen_offset
    outside = (rows < 0) | (rows >= num_positions)
    if outside.any():
        at = tuple(outside.nonzero()[0].tolist())
        raise ArgumentError(
            f"positions{list(at)} is {int(positions[at])}; with seqlen_offset {seqlen_offset} it needs row "
            f"{int(rows[at])} of cos_sin_cache, which has {num_positions}",
            argument="positions",
        )


def _dtype_of(query: torch.Tensor) -> str:
    name = _DTYPES.get(query.dtype)
    if name is None:
        raise ArgumentError(f"query has dtype {query.dtype}; expected bfloat16 or float32", argument="query")
    return name


def _index_dtype_of(positions: torch.Tensor | None) -> str | None:
    if positions is None:
        return None
    name = _INDEX_DTYPES.get(positions.dtype)
    if name is None:
        raise ArgumentError(f"positions has dtype {positions.dtype}; expected int32 or int64", argument="positions")
    return name
