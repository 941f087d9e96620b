"""What the ``calls.py`` of operators share: tensors without data, and how far sizes go."""

from __future__ import annotations

import torch

from tkc.model import ModelDims, Span

TOKENS = Span(0, 2**31 - 1)
"""Tokens of one call."""

GAPS = Span(0, 4096)
"""Elements between the end of a row and the beginning of the next."""


def rows(num_tokens: int, columns: int, dtype: torch.dtype = torch.float32, gap: int = 0) -> torch.Tensor:
    """A matrix without data, whose rows are `gap` elements apart."""
    return torch.empty_strided((num_tokens, columns), (columns + gap, 1), dtype=dtype, device="meta")


def vector(size: int, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    """A vector without data."""
    return torch.empty(size, dtype=dtype, device="meta")


def dtypes(dims: ModelDims) -> tuple[torch.dtype, ...]:
    """Dtypes of a model's activations."""
    return tuple(getattr(torch, name) for name in dims.dtypes)


def widths(dims: ModelDims, multiple: int = 1) -> tuple[int, ...]:
    """Widths of a model's activations that are multiples of `multiple`."""
    found = dict.fromkeys((dims.hidden, *dims.intermediate, *dims.attention_dims))
    return tuple(width for width in found if width % multiple == 0)
