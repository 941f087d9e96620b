"""``normalize_weight``."""

from __future__ import annotations

import torch

from kernel_specs.config import get_pdl
from kernel_specs.moe._routing import MAX_TOPK
from kernel_specs.moe.normalize_weight.spec import SPEC
from tkc.errors import ArgumentError
from tkc.runtime import KernelTable

__all__ = ["normalize_weight"]

_KERNELS = KernelTable(SPEC)


def normalize_weight(topk_weights: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Divide each token's routing weights by their sum.

    Args:
        topk_weights: ``[num_tokens, num_topk]``, float32, last stride 1, any row stride. `num_topk` is 1 to
            32, `num_tokens` may be 0.

    Returns:
        The denominators ``[num_tokens]``, and the weights divided by them, ``[num_tokens, num_topk]``; both
        float32 and contiguous. A denominator is 1e-20 plus the token's sum, so a row of zeros gives zeros.

    Raises ArgumentError for anything else. Definition: the sum is a tree, ``s_j += s_(j xor m)`` for m = 16,
    8, 4, 2, 1 where both exist; every sum and quotient is correctly rounded.
    """
    if topk_weights.dim() != 2:
        raise ArgumentError(
            f"topk_weights has shape {tuple(topk_weights.shape)}; expected [num_tokens, num_topk]",
            argument="topk_weights",
        )
    num_tokens, num_topk = topk_weights.shape
    if not 0 < num_topk <= MAX_TOPK:
        raise ArgumentError(
            f"topk_weights has {num_topk} weights a token; expected 1 to {MAX_TOPK}", argument="topk_weights"
        )
    denominator = topk_weights.new_empty(num_tokens)
    normalized_weights = topk_weights.new_empty(num_tokens, num_topk)
    if num_tokens:
        _KERNELS[topk_weights.device, get_pdl()](topk_weights, denominator, normalized_weights)
    return denominator, normalized_weights
