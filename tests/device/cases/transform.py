"""Rotary embedding on a device."""

from __future__ import annotations

import itertools
import os
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import torch

from kernel_specs.torch import rotary_embedding_ref
from kernel_specs.transform import apply_rotary

Benchmark = tuple[str, Callable[[], object], Callable[[], object] | None, int]
"""Name, ours, the peer's if it is installed, and the fewest bytes that the operator must move."""

_DTYPES = (torch.bfloat16, torch.float32)
_INDEX_DTYPES = (None, torch.int32, torch.int64)


@dataclass(frozen=True)
class _Shape:
    """One call: whether there is a dimension of sequences, heads of query and key, the slice of a head."""

    batches: int | None
    tokens: int
    query_heads: int
    key_heads: int | None
    head_dim: int
    before: int = 0
    after: int = 0
    seqlen_offset: int = 0


_SHAPES = (
    _Shape(None, 1, 1, None, 64),
    _Shape(None, 257, 128, 1, 64, before=128),
    _Shape(None, 513, 16, 2, 128, after=64, seqlen_offset=7),
    _Shape(3, 130, 5, 3, 64, before=64),
    _Shape(2, 33, 8, 8, 128),
    _Shape(None, 77, 6, 1, 192),
    _Shape(None, 77, 3, 1, 256),
    _Shape(2, 19, 7, 2, 64, before=1),
    _Shape(2, 19, 4, 1, 64, before=3, after=2),
    _Shape(None, 31, 3, 1, 6),
    _Shape(None, 31, 3, 2, 20),
    _Shape(None, 0, 3, 1, 64),
    _Shape(2, 9, 0, 2, 64),
    _Shape(2, 9, 2, 0, 64),
)


def correctness(device: torch.device) -> None:
    """Compare the operator with its reference, bit for bit, on fresh random inputs, and what lies around them."""
    seed = int.from_bytes(os.urandom(4), "little")
    generator = torch.Generator().manual_seed(seed)
    flags = (False, True)
    for shape, dtype, index, interleaved, conjugate in itertools.product(_SHAPES, _DTYPES, _INDEX_DTYPES, flags, flags):
        case = f"{shape}, {dtype}, positions {index}, interleaved {interleaved}, conjugate {conjugate}, seed {seed}"
        _check(case, shape, dtype, index, interleaved, conjugate, device, generator)


def benchmarks(device: torch.device, num_tokens: int = 8192) -> Iterator[Benchmark]:
    """Give what is measured: 128 heads of 192 of which 64 are rotated, and one key head."""
    peer = _peer()
    tokens, head_dim = num_tokens, 64
    angles = torch.rand(tokens, head_dim // 2, device=device) * 6.28
    cache = torch.cat((angles.cos(), angles.sin()), dim=1)
    for dtype, interleaved, index in (
        (torch.bfloat16, True, torch.int64),
        (torch.bfloat16, False, torch.int64),
        (torch.bfloat16, True, None),
        (torch.bfloat16, True, torch.int32),
        (torch.float32, True, torch.int64),
    ):
        query = torch.randn(tokens, 128, 192, device=device).to(dtype)[..., 128:]
        key = torch.randn(tokens, 1, 576, device=device).to(dtype)[..., 512:]
        positions = index and torch.randperm(tokens, device=device).to(index)
        arguments = {"key": key, "positions": positions, "interleaved": interleaved}
        rotated = query.numel() + key.numel()
        name = str(dtype).removeprefix("torch.")
        yield (
            f"transform.apply_rotary {name} interleaved={interleaved} positions={index}",
            lambda query=query, arguments=arguments: apply_rotary(query, cache, **arguments),
            peer and (lambda query=query, arguments=arguments: peer.apply_rotary(query, cache, **arguments)),
            2 * rotated * query.element_size() + cache.numel() * 4 + tokens * (index.itemsize if index else 0),
        )


def _check(
    case: str,
    shape: _Shape,
    dtype: torch.dtype,
    index: torch.dtype | None,
    interleaved: bool,
    conjugate: bool,
    device: torch.device,
    generator: torch.Generator,
) -> None:
    leading = (shape.tokens,) if shape.batches is None else (shape.batches, shape.tokens)
    num_positions = shape.tokens + shape.seqlen_offset + 5
    cache = torch.rand(num_positions, shape.head_dim, generator=generator) * 2 - 1
    wholes = [
        None if heads is None else _random((*leading, heads), shape, dtype, generator)
        for heads in (shape.query_heads, shape.key_heads)
    ]
    positions = index and _positions(leading, num_positions, index, generator)
    inside = slice(shape.before, shape.before + shape.head_dim)
    query, key = (None if whole is None else whole[..., inside] for whole in wholes)
    rotated = rotary_embedding_ref(query, cache, key, positions, interleaved, conjugate, shape.seqlen_offset)
    there = [None if whole is None else whole.to(device) for whole in wholes]
    query, key = (None if whole is None else whole[..., inside] for whole in there)
    moved = positions is not None and positions.to(device)
    options = (interleaved, conjugate, shape.seqlen_offset)
    apply_rotary(query, cache.to(device), key, moved if positions is not None else None, *options)
    for name, whole, want, got in zip(("query", "key"), wholes, rotated, there, strict=True):
        if whole is not None:
            whole[..., inside] = want
            assert torch.equal(_bits(got.cpu()), _bits(whole)), f"apply_rotary: {name}: {case}"


def _random(leading: tuple[int, ...], shape: _Shape, dtype: torch.dtype, generator: torch.Generator) -> torch.Tensor:
    size = (*leading, shape.before + shape.head_dim + shape.after)
    exponents = torch.randint(-30, 30, size, generator=generator)
    return torch.ldexp(torch.randn(size, generator=generator), exponents).to(dtype)


def _positions(
    leading: tuple[int, ...], num_positions: int, dtype: torch.dtype, generator: torch.Generator
) -> torch.Tensor:
    """Out of order, some outside the cache, and some of 64 bits outside 32."""
    positions = torch.randint(-2, num_positions + 2, leading, generator=generator)
    if dtype is torch.int64:
        positions[..., ::7] += 1 << 32
    return positions.to(dtype)


def _bits(x: torch.Tensor) -> torch.Tensor:
    return x.contiguous().view({2: torch.int16, 4: torch.int32}[x.element_size()])


def _peer() -> object:
    """TileKernels, where its rotary embedding is installed: versions from 2 have it."""
    try:
        from tile_kernels import transform
    except ModuleNotFoundError as error:
        if (error.name or "").partition(".")[0] != "tile_kernels":
            raise
        return None
    except ImportError:
        return None
    return transform
