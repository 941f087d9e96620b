"""The launch that both expanding operators share."""

from __future__ import annotations

import torch

from kernel_specs._absent import absent
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
    shape, places, device = x.shape, token_topk_to_pos.shape, x.device
    if len(shape) != 2 or x.stride(1) != 1:
        raise ArgumentError(
            f"x has shape {list(shape)} and strides {list(x.stride())}; expected [num_tokens, hidden] with last "
            "stride 1. Call .contiguous()",
            argument="x",
        )
    num_tokens, hidden = shape
    if len(places) != 2 or places[0] != num_tokens:
        raise ArgumentError(
            f"token_topk_to_pos has shape {list(places)}; expected [{num_tokens}, num_topk]",
            argument="token_topk_to_pos",
        )
    if pos_to_expert.dim() != 1:
        raise ArgumentError(
            f"pos_to_expert has shape {list(pos_to_expert.shape)}; expected [num_positions]", argument="pos_to_expert"
        )
    num_positions = pos_to_expert.shape[0]
    if checked_mode():
        check_range("token_topk_to_pos", token_topk_to_pos, -1, num_positions)
    out = x.new_empty(num_positions, hidden)
    if num_positions and hidden:
        if sf is None or out_sf is None:
            sf = out_sf = absent(device, torch.int32, 2)
        _KERNELS[device, get_pdl()](
            x.view(torch.uint8), sf, token_topk_to_pos, pos_to_expert, out.view(torch.uint8), out_sf
        )
    return out
