"""What a model asks of ``moe_topk_gate_backward``."""

from __future__ import annotations

from collections.abc import Iterator

import torch

from kernel_specs._calls import GAPS, TOKENS, rows
from kernel_specs.moe.moe_topk_gate_backward.op import moe_topk_gate_backward
from kernel_specs.moe.moe_topk_gate_backward.spec import SCORING_FUNCS
from tkc.model import Calls, ModelDims


def calls(dims: ModelDims) -> Iterator[Calls]:
    """Gradients of the model's router, for the scoring functions that have one."""

    def call(num_tokens: int, gap: int, scoring_func: str) -> None:
        weights = rows(num_tokens, dims.num_topk)
        moe_topk_gate_backward(
            rows(num_tokens, dims.num_experts, gap=gap),
            rows(num_tokens, dims.num_topk, torch.int64),
            weights,
            weights,
            1.0,
            scoring_func,
        )

    chosen = tuple(name for name in dims.scoring_funcs if name in SCORING_FUNCS)
    if dims.num_experts and dims.num_topk and chosen:
        yield Calls(call, num_tokens=TOKENS, gap=GAPS, scoring_func=chosen)
