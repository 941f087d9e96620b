"""PyTorch reference of ``moe.reduce_fused``."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import torch

__all__ = ["reduce_fused"]

_E4M3_MAX = 448.0


def reduce_fused(
    x: torch.Tensor | tuple[torch.Tensor, torch.Tensor],
    topk_weights: torch.Tensor | None,
    token_topk_to_pos: torch.Tensor,
    fp8_format: str = "",
    sf: torch.Tensor | None = None,
    out: torch.Tensor | None = None,
) -> torch.Tensor:
    """Weighted sum of the rows of each token's picks: see the operator of the same name."""
    data, x_sf = x if isinstance(x, tuple) else (x, None)
    picked = (token_topk_to_pos >= 0) & (token_topk_to_pos < data.shape[0])
    index = token_topk_to_pos.masked_fill(~picked, 0).long()
    factors = torch.ones(index.shape) if topk_weights is None else topk_weights
    if x_sf is not None and x_sf.numel():
        factors = factors * x_sf[index]
    total = torch.zeros(index.shape[0], data.shape[1])
    for k in range(index.shape[1] if data.shape[0] else 0):
        # The product of two float32 is exact in float64; their sum is rounded to 53 bits, then to 24.
        wide = data[index[:, k]].double() * factors[:, k, None].double() + total.double()
        total = torch.where(picked[:, k, None], wide.float(), total)
    if sf is not None:
        total = total * (sf if sf.numel() == 1 else sf[:, None])
    dtype = torch.float8_e4m3fn if fp8_format else data.dtype
    if dtype is torch.float8_e4m3fn:
        total = total.clamp(-_E4M3_MAX, _E4M3_MAX)
    reduced = total.to(dtype)
    return reduced if out is None else out.copy_(reduced)


def samples(specialization: Mapping[str, Any], seed: int) -> Iterator[dict[str, object]]:
    """Give launch arguments that cover the edges of what `specialization` serves; outputs are poisoned.

    Values are few bits wide, so that no sum depends on rounding twice.
    """
    generator = torch.Generator().manual_seed(seed)
    dtype = getattr(torch, specialization["dtype"])
    to = torch.float8_e4m3fn if specialization["to_e4m3"] else dtype
    for num_tokens, num_topk, hidden, padding, weighted, scaled, num_sf in (
        (5, 8, 576, 0, True, False, 0),
        (3, 6, 2048, 16, True, True, 1),
        (4, 9, 77, 0, False, True, 4),
        (2, 1, 16, 3, False, False, 0),
        (7, 2, 48, 0, True, True, 0),
        (2, 35, 64, 0, True, True, 0),
    ):
        num_positions = num_tokens * num_topk + 3
        positions = torch.randperm(num_positions, generator=generator)[: num_tokens * num_topk].int()
        positions[::4] = -1
        positions[1::9] = num_positions
        rows = torch.randint(-16, 17, (num_positions, hidden + padding), generator=generator) / 4
        weights = torch.randint(0, 9, (num_tokens, num_topk), generator=generator) / 8
        yield {
            "x": rows.to(dtype)[:, padding:],
            "x_sf": 2.0 ** torch.randint(-2, 3, (num_positions if scaled else 0,), generator=generator),
            "topk_weights": weights if weighted else torch.empty(0, 1),
            "token_topk_to_pos": positions.view(num_tokens, num_topk),
            "sf": 2.0 ** torch.randint(-1, 6, (num_sf,), generator=generator),
            "out": torch.full((num_tokens, hidden), 0x7F, dtype=torch.uint8).repeat_interleave(to.itemsize, 1).view(to),
        }


def expected(specialization: Mapping[str, Any], args: Mapping[str, Any]) -> dict[str, torch.Tensor]:
    """The right value of each output of a launch with `args`."""
    out = reduce_fused(
        (args["x"], args["x_sf"]),
        args["topk_weights"] if args["topk_weights"].numel() else None,
        args["token_topk_to_pos"],
        "e4m3" if specialization["to_e4m3"] else "",
        args["sf"] if args["sf"].numel() else None,
    )
    return {"out": out}
