"""What a model asks of ``apply_rotary``."""

from __future__ import annotations

from collections.abc import Iterator

import torch

from kernel_specs._calls import dtypes
from kernel_specs.transform.apply_rotary.op import apply_rotary
from tkc.model import Calls, ModelDims, Span

_POSITIONS = 2**20


def calls(dims: ModelDims) -> Iterator[Calls]:
    """Rotations of part of each head, in either order of pairs, by positions that are given or counted."""

    def call(num_tokens: int, heads: int, dtype: torch.dtype, dim: int, interleaved: bool, index: object) -> None:
        query = torch.empty(num_tokens, heads, dim, dtype=dtype, device="meta")
        cache = torch.empty(_POSITIONS, dim, device="meta")
        positions = None if index is None else torch.empty(num_tokens, dtype=index, device="meta")  # type: ignore[call-overload]
        apply_rotary(query, cache, query, positions, interleaved)

    if dims.rope_dims:
        yield Calls(
            call,
            num_tokens=Span(0, _POSITIONS),
            heads=Span(1, 256),
            dtype=dtypes(dims),
            dim=dims.rope_dims,
            interleaved=(False, True),
            index=(None, torch.int32, torch.int64),
        )
