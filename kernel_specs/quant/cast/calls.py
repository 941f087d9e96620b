"""What a model asks of ``cast``."""

from __future__ import annotations

from collections.abc import Iterator

import torch

from kernel_specs._calls import dtypes, vector
from kernel_specs.quant.cast.op import cast
from tkc.model import Calls, ModelDims, Span


def calls(dims: ModelDims) -> Iterator[Calls]:
    """Casts between float32, the activations' dtypes and, in a quantised model, e4m3; to nearest or by chance."""

    def call(numel: int, dtype: torch.dtype, to: torch.dtype, stochastic_rounding: bool) -> None:
        cast(vector(4 * numel, dtype), to, stochastic_rounding)

    found = (torch.float32, *dtypes(dims), *((torch.float8_e4m3fn,) if dims.quant else ()))
    kinds = tuple(dict.fromkeys(found))
    yield Calls(call, numel=Span(0, 2**40), dtype=kinds, to=kinds, stochastic_rounding=(False,))
    by_chance = ((torch.float32, to) for to in (torch.bfloat16, torch.float8_e4m3fn))
    for x_dtype, y_dtype in (*by_chance, (torch.bfloat16, torch.float8_e4m3fn)):
        if x_dtype in kinds and y_dtype in kinds:
            yield Calls(call, numel=Span(0, 2**40), dtype=(x_dtype,), to=(y_dtype,), stochastic_rounding=(True,))
