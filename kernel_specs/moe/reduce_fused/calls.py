"""What a model asks of ``reduce_fused``."""

from __future__ import annotations

from collections.abc import Iterator

import torch

from kernel_specs._calls import GAPS, TOKENS, dtypes, rows, widths
from kernel_specs.moe.reduce_fused.op import reduce_fused
from tkc.model import Calls, ModelDims


def calls(dims: ModelDims) -> Iterator[Calls]:
    """Sums of the rows of a token's experts, of any width of the model, into the same dtype or into e4m3."""

    def call(num_tokens: int, gap: int, dtype: torch.dtype, hidden: int, fp8_format: str) -> None:
        x = rows(num_tokens, hidden, dtype, gap)
        positions = rows(num_tokens, dims.num_topk, torch.int32)
        reduce_fused(x, rows(num_tokens, dims.num_topk), positions, fp8_format)

    if dims.num_experts and dims.num_topk:
        yield Calls(
            call,
            num_tokens=TOKENS,
            gap=GAPS,
            dtype=(*dtypes(dims), torch.float8_e4m3fn),
            hidden=widths(dims),
            fp8_format=("", "e4m3"),
        )
