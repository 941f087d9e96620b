"""The launch that both expanding operators share."""

from __future__ import annotations

import functools

import torch

from kernel_specs.config import get_pdl
from kernel_specs.moe._checks import check_range, checked_mode
from kernel_specs.moe.expand_to_fused.spec import SPEC
from tkc.errors import ArgumentError
from tkc.runtime import KernelTable

_KERNELS = KernelTable(SPEC)


def expand(
    x: torch.Tensor,
    token_topk_to_pos: torch.Tensor,
    pos_to_expert: torch.Tensor,
    sf: torch.Tensor | None = None,
    out_sf: torch.Tensor | None = None,
) -> torch.Tensor:
    """Allocate the expanded rows and fill them, and `out_sf` from `sf` if they are given, both int32.

    Raises ArgumentError for arguments that do not fit.
    """
    if x.dim() != 2 or x.stride(1) != 1:
        raise ArgumentError(
            f"x has shape {list(x.shape)} and strides {list(x.stride())}; expected [num_tokens, hidden] with last "
            "stride 1. Call .contiguous()",
            argument="x",
        )
    if token_topk_to_pos.dim() != 2 or token_topk_to_pos.shape[0] != x.shape[0]:
        raise ArgumentError(
            f"token_topk_to_pos has shape {list(token_topk_to_pos.shape)}; expected [{x.shape[0]}, num_topk]",
            argument="token_topk_to_pos",
        )
    if pos_to_expert.dim() != 1:
        raise ArgumentError(
            f"pos_to_expert has shape {list(pos_to_expert.shape)}; expected [num_positions]", argument="pos_to_expert"
        )
    num_positions = pos_to_expert.shape[0]
    if checked_mode():
        check_range("token_topk_to_pos", token_topk_to_pos, -1, num_positions)
    out = x.new_empty(num_positions, x.shape[1])
    if num_positions and x.shape[1]:
        nothing = _nothing(x.device)
        _KERNELS[x.device, get_pdl()](
            x.view(torch.uint8),
            nothing if sf is None else sf,
            token_topk_to_pos,
            pos_to_expert,
            out.view(torch.uint8),
            nothing if out_sf is None else out_sf,
        )
    return out


@functools.cache
def _nothing(device: torch.device) -> torch.Tensor:
    return torch.empty(0, 1, dtype=torch.int32, device=device)
