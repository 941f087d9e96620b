"""PyTorch reference of ``moe.topk_gate``."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import torch

__all__ = ["stable_topk", "topk_gate"]

_INF = float("inf")


def stable_topk(scores: torch.Tensor, num_topk: int) -> torch.Tensor:
    """Indices of the `num_topk` largest values of the last dimension, largest first.

    Among equal values the smaller index comes first; NaN counts as minus infinity.

    Args:
        scores: ``[..., num_experts]``, floating point.
        num_topk: at most ``num_experts``.

    Returns:
        ``[..., num_topk]``, int64.
    """
    ranked = scores.masked_fill(scores.isnan(), -_INF)
    return ranked.sort(dim=-1, descending=True, stable=True).indices[..., :num_topk].contiguous()


def topk_gate(scores: torch.Tensor, num_topk: int) -> torch.Tensor:
    """Pick the `num_topk` best experts of each token: see `stable_topk`.

    Args:
        scores: ``[num_tokens, num_experts]``, float32.
        num_topk: at most ``num_experts``.

    Returns:
        ``[num_tokens, num_topk]``, int64.
    """
    return stable_topk(scores, num_topk)


def samples(specialization: Mapping[str, Any], seed: int) -> Iterator[dict[str, object]]:
    """Give launch arguments that cover the edges of what `specialization` serves; outputs are poisoned."""
    generator = torch.Generator().manual_seed(seed)
    room = specialization["max_experts"]
    for num_tokens, num_experts, num_topk in (
        (1, room, 8),
        (7, room, 32),
        (33, room - 1, 8),
        (3, room - 17, 6),
        (2, 33, 32),
        (5, 8, 8),
        (4, 1, 1),
        (0, room, 8),
    ):
        shape = (num_tokens, num_experts)
        yield _launch(torch.randn(shape, generator=generator), num_topk)
        yield _launch(_with_ties(shape, generator), num_topk)
        yield _launch(_with_specials(shape, generator), num_topk)
        yield _launch(torch.randn(num_tokens, num_experts + 5, generator=generator)[:, :num_experts], num_topk)
    for constant in (0.0, -0.0, -_INF, float("nan")):
        yield _launch(torch.full((3, room), constant), 8)


def expected(specialization: Mapping[str, Any], args: Mapping[str, Any]) -> dict[str, torch.Tensor]:
    """The right value of each output of a launch with `args`."""
    return {"topk_idx": topk_gate(args["scores"], args["topk_idx"].shape[1])}


def _launch(scores: torch.Tensor, num_topk: int) -> dict[str, object]:
    poison = torch.full((scores.shape[0], num_topk), 0x7F7F7F7F7F7F7F7F)
    return {"scores": scores, "topk_idx": poison}


def _with_ties(shape: tuple[int, int], generator: torch.Generator) -> torch.Tensor:
    return torch.randint(-3, 4, shape, generator=generator).to(torch.float32) / 4


def _with_specials(shape: tuple[int, int], generator: torch.Generator) -> torch.Tensor:
    tiny = torch.finfo(torch.float32).smallest_normal
    specials = torch.tensor([_INF, -_INF, float("nan"), 0.0, -0.0, tiny / 2, -tiny / 2, tiny / 4, 3.4e38, -3.4e38])
    specials = torch.cat([specials, torch.tensor([-1], dtype=torch.int32).view(torch.float32)])
    chosen = specials[torch.randint(len(specials), shape, generator=generator)]
    return torch.where(torch.rand(shape, generator=generator) < 0.5, chosen, torch.randn(shape, generator=generator))
