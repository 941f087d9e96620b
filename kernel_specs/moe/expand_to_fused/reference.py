"""PyTorch reference of ``moe.expand_to_fused``."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import torch

__all__ = ["expand_to_fused", "expand_to_fused_with_sf"]


def expand_to_fused(x: torch.Tensor, token_topk_to_pos: torch.Tensor, pos_to_expert: torch.Tensor) -> torch.Tensor:
    """Copy each token's row to the positions of its picks; padding, and positions of no pick, are zero."""
    out = torch.zeros(pos_to_expert.numel(), x.shape[1], dtype=x.dtype)
    _scatter(x, token_topk_to_pos, out)
    return out


def expand_to_fused_with_sf(
    x: tuple[torch.Tensor, torch.Tensor],
    num_per_channels: int,
    token_topk_to_pos: torch.Tensor,
    pos_to_expert: torch.Tensor,
    use_tma_aligned_col_major_sf: bool = False,
) -> tuple[torch.Tensor, torch.Tensor]:
    """The same for quantised rows and their scale factors, which lie by columns if asked."""
    data, sf = x
    out = expand_to_fused(data.view(torch.uint8), token_topk_to_pos, pos_to_expert).view(data.dtype)
    out_sf = expand_to_fused(sf, token_topk_to_pos, pos_to_expert)
    if use_tma_aligned_col_major_sf:
        rows = -(-len(out_sf) // 4) * 4
        by_columns = torch.empty(out_sf.shape[1], rows, dtype=sf.dtype)[:, : len(out_sf)].T
        out_sf = by_columns.copy_(out_sf)
    return out, out_sf


def _scatter(rows: torch.Tensor, token_topk_to_pos: torch.Tensor, out: torch.Tensor) -> None:
    legal = (token_topk_to_pos >= 0) & (token_topk_to_pos < out.shape[0])
    tokens = legal.nonzero()[:, 0]
    out[token_topk_to_pos[legal].long()] = rows[tokens]


def samples(specialization: Mapping[str, Any], seed: int) -> Iterator[dict[str, object]]:
    """Give launch arguments that cover the edges of what the kernel serves; outputs are poisoned."""
    generator = torch.Generator().manual_seed(seed)
    for num_tokens, num_topk, row_bytes, offset, num_sf, by_columns in (
        (7, 8, 2064, 0, 0, False),
        (3, 2, 4128, 16, 9, True),
        (5, 9, 77, 0, 3, False),
        (4, 1, 32, 5, 150, True),
        (0, 8, 64, 0, 2, False),
        (2, 3, 16, 0, 1, False),
        (2, 35, 32, 0, 2, False),
        (2, 3, 2051, 3, 5, False),
    ):
        num_positions = num_tokens * num_topk + 19
        order = torch.randperm(num_positions, generator=generator)[: num_tokens * num_topk].int()
        pos_to_expert = torch.full((num_positions,), -1, dtype=torch.int32)
        pos_to_expert[order.long()] = 3
        order[::5] = -1
        order[1::7] = num_positions + 2
        rows = torch.randint(0, 256, (num_tokens, row_bytes + offset), generator=generator, dtype=torch.uint8)
        out_sf = torch.full((num_sf, num_positions) if by_columns else (num_positions, num_sf), 0x7F7F7F7F)
        out_sf = out_sf.int().T if by_columns else out_sf.int()
        words = torch.randint(-(2**31), 2**31, (num_tokens, num_sf), generator=generator).int()
        nothing = torch.empty(0, 1, dtype=torch.int32)
        yield {
            "x": rows[:, offset:],
            "sf": words if num_sf else nothing,
            "token_topk_to_pos": order.view(num_tokens, num_topk),
            "pos_to_expert": pos_to_expert,
            "out": torch.full((num_positions, row_bytes), 0x7F, dtype=torch.uint8),
            "out_sf": out_sf if num_sf else nothing.clone(),
        }


def expected(specialization: Mapping[str, Any], args: Mapping[str, Any]) -> dict[str, torch.Tensor]:
    """The right value of each output of a launch with `args`: what is neither copied nor padding stays."""
    wanted = {}
    for name, rows in (("out", args["x"]), ("out_sf", args["sf"])):
        out = args[name].clone()
        out[(args["pos_to_expert"] < 0)[: out.shape[0]]] = 0
        if out.shape[0]:
            _scatter(rows, args["token_topk_to_pos"], out)
        wanted[name] = out
    return wanted
