"""What a model asks of ``topk_sum_and_topk_group_idx``."""

from __future__ import annotations

from collections.abc import Iterator

from kernel_specs._calls import TOKENS, rows
from kernel_specs.moe.topk_sum_and_topk_group_idx.op import topk_sum_and_topk_group_idx
from tkc.model import Calls, ModelDims


def calls(dims: ModelDims) -> Iterator[Calls]:
    """The best of the model's groups of experts; a model without groups has one that holds them all."""
    num_groups = dims.num_groups or 1

    def call(num_tokens: int, num_topk_sum: int) -> None:
        scores = rows(num_tokens, dims.num_experts).view(num_tokens, num_groups, dims.num_experts // num_groups)
        topk_sum_and_topk_group_idx(scores, num_topk_sum, dims.num_topk_groups or 1)

    if dims.num_experts:
        yield Calls(call, num_tokens=TOKENS, num_topk_sum=(1, 2))
