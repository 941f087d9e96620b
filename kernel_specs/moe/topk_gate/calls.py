"""What a model asks of ``topk_gate``."""

from __future__ import annotations

from collections.abc import Iterator

from kernel_specs._calls import GAPS, TOKENS, rows
from kernel_specs.moe.topk_gate.op import topk_gate
from tkc.model import Calls, ModelDims


def calls(dims: ModelDims) -> Iterator[Calls]:
    """Picks of the model's experts, for any number of tokens and any row stride."""

    def call(num_tokens: int, gap: int) -> None:
        topk_gate(rows(num_tokens, dims.num_experts, gap=gap), dims.num_topk)

    if dims.num_experts and dims.num_topk:
        yield Calls(call, num_tokens=TOKENS, gap=GAPS)
