"""What a model asks of ``moe_topk_gate_forward``."""

from __future__ import annotations

from collections.abc import Iterator

import torch

from kernel_specs._calls import GAPS, TOKENS, rows, vector
from kernel_specs.moe.moe_topk_gate_forward.op import moe_topk_gate_forward
from tkc.model import Calls, ModelDims


def calls(dims: ModelDims) -> Iterator[Calls]:
    """The model's router, with its scoring functions, with and without a bias, a mask, shared experts and scores."""

    def call(num_tokens: int, gap: int, scoring_func: str, shared: bool, more: bool) -> None:
        moe_topk_gate_forward(
            rows(num_tokens, dims.num_experts, gap=gap),
            dims.num_topk,
            shared,
            dims.num_shared_experts,
            1.0,
            0,
            scoring_func,
            mask=vector(num_tokens, torch.bool) if more else None,
            bias=vector(dims.num_experts) if more else None,
            scores=rows(num_tokens, dims.num_experts) if more else None,
        )

    if dims.num_experts and dims.num_topk:
        yield Calls(
            call,
            num_tokens=TOKENS,
            gap=GAPS,
            scoring_func=dims.scoring_funcs,
            shared=(False, True) if dims.num_shared_experts else (False,),
            more=(False, True),
        )
