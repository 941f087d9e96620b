"""PyTorch reference of ``moe.normalize_weight``."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import torch

__all__ = ["normalize_weight"]

_EPSILON = 1e-20
_HALVES = (16, 8, 4, 2, 1)


def normalize_weight(topk_weights: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Divide each token's routing weights by their sum.

    The sum is a tree: ``s_j += s_(j xor m)`` for m = 16, 8, 4, 2, 1, where both exist. 1e-20 is added to it,
    so that a row of zeros gives zeros.

    Args:
        topk_weights: ``[num_tokens, num_topk]``, float32, `num_topk` at most 32.

    Returns:
        The denominators ``[num_tokens]``, and the weights divided by them, ``[num_tokens, num_topk]``.
    """
    sums = list(topk_weights.unbind(1))
    for half in _HALVES:
        for j in range(min(half, max(len(sums) - half, 0))):
            sums[j] = sums[j] + sums[j + half]
        del sums[half:]
    denominator = sums[0] + _EPSILON
    return denominator, topk_weights / denominator.unsqueeze(1)


def samples(specialization: Mapping[str, Any], seed: int) -> Iterator[dict[str, object]]:
    """Give launch arguments that cover the edges of what the kernel serves; outputs are poisoned."""
    generator = torch.Generator().manual_seed(seed)
    for num_tokens, num_topk in (
        (1, 8),
        (129, 8),
        (65, 6),
        (31, 1),
        (17, 2),
        (33, 9),
        (40, 31),
        (5, 32),
        (0, 8),
    ):
        shape = (num_tokens, num_topk)
        yield _launch(torch.rand(shape, generator=generator))
        yield _launch(_wide(shape, generator))
        yield _launch(torch.rand(num_tokens, num_topk + 3, generator=generator)[:, :num_topk])
    for constant in (0.0, -0.0, 1e-20, 1e-42):
        yield _launch(torch.full((3, 8), constant))


def expected(specialization: Mapping[str, Any], args: Mapping[str, Any]) -> dict[str, torch.Tensor]:
    """The right value of each output of a launch with `args`."""
    denominator, normalized_weights = normalize_weight(args["topk_weights"])
    return {"denominator": denominator, "normalized_weights": normalized_weights}


def _launch(topk_weights: torch.Tensor) -> dict[str, object]:
    return {
        "topk_weights": topk_weights,
        "denominator": torch.full(topk_weights.shape[:1], float("nan")),
        "normalized_weights": torch.full(tuple(topk_weights.shape), float("nan")),
    }


def _wide(shape: tuple[int, int], generator: torch.Generator) -> torch.Tensor:
    """Both signs, and magnitudes from denormal to large, so that the order of the sum shows."""
    exponent = torch.randint(-140, 100, shape, generator=generator)
    return torch.ldexp(torch.randn(shape, generator=generator), exponent)
