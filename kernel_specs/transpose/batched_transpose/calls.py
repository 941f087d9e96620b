"""What a model asks of ``transpose`` and ``batched_transpose``."""

from __future__ import annotations

from collections.abc import Iterator

import torch

from kernel_specs._calls import GAPS, TOKENS, dtypes, rows, widths
from kernel_specs.transpose.batched_transpose.op import transpose
from tkc.model import Calls, ModelDims


def calls(dims: ModelDims) -> Iterator[Calls]:
    """Activations, gradients and scale factors; of a quantised model also what it is quantised to."""

    def call(num_tokens: int, gap: int, dtype: torch.dtype, hidden: int) -> None:
        transpose(rows(num_tokens, hidden, dtype, gap))

    moved = (*dtypes(dims), torch.float32, torch.int32)
    quantised = (torch.float8_e4m3fn, torch.int8) if dims.quant else ()
    yield Calls(call, num_tokens=TOKENS, gap=GAPS, dtype=tuple(dict.fromkeys(moved + quantised)), hidden=widths(dims))
