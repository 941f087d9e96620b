"""``expand_to_fused``."""

from __future__ import annotations

import torch

from kernel_specs.moe._expand import expand

__all__ = ["expand_to_fused"]


def expand_to_fused(x: torch.Tensor, token_topk_to_pos: torch.Tensor, pos_to_expert: torch.Tensor) -> torch.Tensor:
    """Copy each token's row to the positions of its picks.

    Args:
        x: ``[T, H]``, any dtype, last stride 1, any row stride; T may be 0.
        token_topk_to_pos: ``[T, K]``, int32, contiguous, from `get_fused_mapping`: -1 goes nowhere, nor does any
            other position that is none (an error with ``TKC_CHECK=1``).
        pos_to_expert: ``[N]``, int32, contiguous: rows where it is negative become zero.

    Returns:
        ``[N, H]``, dtype of `x`, contiguous. A row that is neither padding nor a pick's is not written.

    Raises ArgumentError, before anything is launched, for anything else.
    """
    return expand(x, token_topk_to_pos, pos_to_expert)
