"""PyTorch reference of `apply_rotary`, exact to the bit."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import torch

__all__ = ["rotary_embedding_ref"]


def rotary_embedding_ref(
    query: torch.Tensor,
    cos_sin_cache: torch.Tensor,
    key: torch.Tensor | None = None,
    positions: torch.Tensor | None = None,
    interleaved: bool = False,
    conjugate: bool = False,
    seqlen_offset: int = 0,
) -> tuple[torch.Tensor, torch.Tensor | None]:
    """Rotate the heads of `query` and `key` by the angles of their tokens' positions.

    Args:
        query, key: ``[T, h, d]`` or ``[B, T, h, d]``, bfloat16 or float32; each has its own number of heads.
        cos_sin_cache: ``[P, d]`` float32; cosines of a position's angles, then their sines.
        positions: ``[T]`` or ``[B, T]``, integers; by default a token's place in its sequence.
        interleaved: whether pair j is elements (2j, 2j + 1), else (j, j + d / 2).
        conjugate: whether to rotate back.
        seqlen_offset: added to every position.

    Returns:
        New tensors; None for a key of None. A position outside the cache gives zeros.
    """
    if positions is None:
        positions = torch.arange(query.shape[-3], device=query.device).expand(query.shape[:-2])
    cosines, sines = _of_tokens(cos_sin_cache, positions.long() + seqlen_offset)
    sines = -sines if conjugate else sines
    rotated = [None if x is None else _rotate(x, cosines, sines, interleaved) for x in (query, key)]
    return rotated[0], rotated[1]


def _of_tokens(cos_sin_cache: torch.Tensor, rows: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Cosines and sines ``[…, 1, d / 2]`` of each token; zeros where a row is outside the cache."""
    known = (rows >= 0) & (rows < cos_sin_cache.shape[0])
    found = (
        cos_sin_cache[rows.where(known, 0)]
        if known.any()
        else cos_sin_cache.new_zeros(*rows.shape, cos_sin_cache.shape[1])
    )
    found = found.where(known[..., None], 0.0)[..., None, :]
    cosines, sines = found.chunk(2, dim=-1)
    return cosines, sines


def _rotate(x: torch.Tensor, cosines: torch.Tensor, sines: torch.Tensor, interleaved: bool) -> torch.Tensor:
    a, b = (x[..., 0::2], x[..., 1::2]) if interleaved else x.chunk(2, dim=-1)
    a, b = a.float(), b.float()
    first = _fma(a, cosines, -(b * sines)).to(x.dtype)
    second = _fma(a, sines, b * cosines).to(x.dtype)
    if interleaved:
        return torch.stack((first, second), dim=-1).flatten(-2)
    return torch.cat((first, second), dim=-1)


def _fma(a: torch.Tensor, b: torch.Tensor, c: torch.Tensor) -> torch.Tensor:
    """``a * b + c`` of float32 tensors, rounded once.

    The product of two float32 numbers is exact in float64 (48 of 53 bits, exponents far inside). The sum is
    not: rounding it to float64 and then to float32 could round twice. So the float64 sum is rounded to odd:
    where it is inexact and its last bit is 0, the neighbour towards the exact sum is taken, whose last bit is
    1. A number rounded to odd, with at least two bits more than the result has, rounds as the exact one does,
    also to subnormal results, which have fewer bits still.
    """
    product, addend = a.double() * b.double(), c.double()
    total = product + addend
    shadow = total - product
    error = (product - (total - shadow)) + (addend - shadow)
    bits = total.view(torch.int64)
    away = (error > 0) == (total > 0)
    odd = torch.where(away, bits + 1, bits - 1)
    inexact = error.isfinite() & (error != 0) & (bits & 1 == 0)
    return torch.where(inexact, odd, bits).view(torch.float64).float()


def samples(specialization: Mapping[str, Any], seed: int) -> Iterator[dict[str, object]]:
    """Whole and partial groups of heads, sizes that fill vectors and that do not, slices, unaligned strides,
    positions out of order, out of the cache and, as int64, out of 32 bits."""
    generator = torch.Generator().manual_seed(seed)
    dtype = getattr(torch, specialization["dtype"])
    for shape in _SHAPES:
        batches, tokens, query_heads, key_heads, head_dim, before, after, offset = shape
        num_positions = 97
        cache = torch.rand(num_positions, head_dim, generator=generator) * 2 - 1
        args: dict[str, object] = {
            name: _slice_of_heads(batches, tokens, heads, head_dim, before, after, dtype, generator)
            for name, heads in (("query", query_heads), ("key", key_heads or query_heads))
        }
        args["cos_sin_cache"] = cache
        if specialization["positions"]:
            args["positions"] = _positions(batches, tokens, num_positions, specialization["positions"], generator)
        yield {
            **args,
            "rotate_key": int(key_heads > 0),
            "sine_sign": -1.0 if tokens % 2 else 1.0,
            "seqlen_offset": offset,
        }


# batches, tokens, query heads, key heads (0: key is not rotated), head_dim, elements before and after each
# head in memory, seqlen_offset.
_SHAPES = (
    (1, 1, 1, 1, 64, 0, 0, 0),
    (1, 33, 8, 1, 64, 128, 0, 5),
    (2, 17, 5, 2, 128, 0, 64, 0),
    (3, 4, 16, 0, 64, 64, 64, 90),
    (1, 7, 3, 1, 192, 0, 0, 0),
    (2, 3, 2, 2, 64, 3, 5, 1),
    (1, 5, 3, 1, 6, 0, 0, 0),
    (1, 6, 1, 4, 20, 4, 0, 2),
)


def _slice_of_heads(
    batches: int,
    tokens: int,
    heads: int,
    head_dim: int,
    before: int,
    after: int,
    dtype: torch.dtype,
    generator: torch.Generator,
) -> torch.Tensor:
    whole = torch.randn(batches, tokens, heads, before + head_dim + after, generator=generator)
    scale = torch.exp2(torch.randint(-20, 20, whole.shape, generator=generator).float())
    return (whole * scale).to(dtype)[..., before : before + head_dim]


def _positions(batches: int, tokens: int, num_positions: int, dtype: str, generator: torch.Generator) -> torch.Tensor:
    positions = torch.randint(-3, num_positions + 3, (batches, tokens), generator=generator)
    if dtype == "int64":
        positions[:, ::5] += 1 << 32
    return positions.to(getattr(torch, dtype))


def expected(specialization: Mapping[str, Any], args: dict[str, Any]) -> dict[str, torch.Tensor]:
    """The right values of `query` and `key`."""
    query, key = rotary_embedding_ref(
        args["query"],
        args["cos_sin_cache"],
        args["key"] if args["rotate_key"] else None,
        args.get("positions"),
        interleaved=specialization["interleaved"],
        conjugate=args["sine_sign"] < 0,
        seqlen_offset=args["seqlen_offset"],
    )
    return {"query": query, "key": args["key"].clone() if key is None else key}
