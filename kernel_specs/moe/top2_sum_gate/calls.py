"""What a model asks of ``top2_sum_gate``."""

from __future__ import annotations

from collections.abc import Iterator

from kernel_specs._calls import GAPS, TOKENS, rows, vector
from kernel_specs.moe.top2_sum_gate.op import top2_sum_gate
from tkc.model import Calls, ModelDims


def calls(dims: ModelDims) -> Iterator[Calls]:
    """The model's router with its groups of experts, or none, and its scoring functions, on one rank or of two."""

    def call(num_tokens: int, gap: int, scoring_func: str, num_tp_ranks: int) -> None:
        top2_sum_gate(
            rows(num_tokens, dims.num_experts, gap=gap),
            vector(dims.num_experts),
            dims.num_topk,
            dims.num_topk_groups,
            dims.num_groups,
            False,
            dims.num_shared_experts,
            1.0,
            ep_rank=0,
            num_ep_ranks=num_tp_ranks,
            tp_rank=0,
            num_tp_ranks=num_tp_ranks,
            scoring_func=scoring_func,
        )

    if dims.num_experts and dims.num_topk:
        yield Calls(call, num_tokens=TOKENS, gap=GAPS, scoring_func=dims.scoring_funcs, num_tp_ranks=(1, 2))
