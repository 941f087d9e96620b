"""PyTorch reference of `batched_transpose`."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import torch

__all__ = ["batched_transpose", "transpose"]


def transpose(x: torch.Tensor) -> torch.Tensor:
    """The transpose of the matrix `x`, contiguous."""
    return x.transpose(-2, -1).clone(memory_format=torch.contiguous_format)


def batched_transpose(x: torch.Tensor) -> torch.Tensor:
    """The transpose of each matrix of `x` ``[B, M, N]``, contiguous."""
    return x.transpose(-2, -1).clone(memory_format=torch.contiguous_format)


_DTYPES = {1: torch.float8_e4m3fn, 2: torch.bfloat16, 4: torch.float32, 8: torch.int64}


def samples(specialization: Mapping[str, Any], seed: int) -> Iterator[dict[str, object]]:
    """Random bits in shapes that fill tiles, cut them, and miss the vector width; padded and unaligned rows."""
    generator = torch.Generator().manual_seed(seed)
    size_bytes = specialization["size_bytes"]
    for num_batches, num_rows, num_columns, padding, offset in _SHAPES:
        stride_row = num_columns + padding
        stride_batch = num_rows * stride_row + padding
        bits = torch.randint(
            0,
            256,
            ((offset + num_batches * stride_batch + 1) * size_bytes,),
            dtype=torch.uint8,
            generator=generator,
        )
        storage = bits.view(_DTYPES[size_bytes])
        x = storage.as_strided((num_batches, num_rows, num_columns), (stride_batch, stride_row, 1), offset)
        out = torch.empty(num_batches, num_columns, num_rows, dtype=x.dtype)
        out.view(torch.uint8).fill_(0x7F)
        yield {"x": x, "out": out}


# num_batches, num_rows, num_columns, extra elements at the end of a row and of a matrix, offset of the first.
_SHAPES = (
    (1, 1, 1, 0, 0),
    (1, 16, 16, 0, 0),
    (2, 64, 48, 16, 0),
    (1, 272, 144, 0, 0),
    (1, 80, 33, 0, 0),
    (3, 37, 64, 0, 0),
    (2, 64, 64, 3, 0),
    (1, 64, 64, 0, 1),
    (2, 5, 131, 7, 3),
    (1, 1, 300, 0, 0),
    (1, 300, 1, 0, 0),
    (2, 301, 277, 3, 1),
)


def expected(specialization: Mapping[str, Any], args: dict[str, Any]) -> dict[str, torch.Tensor]:
    """The right value of `out`."""
    return {"out": batched_transpose(args["x"])}
