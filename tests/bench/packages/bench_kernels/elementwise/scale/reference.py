"""PyTorch reference of `elementwise.scale`."""

import torch


def samples(specialization, seed):
    """Launch arguments; the output is poisoned."""
    generator = torch.Generator().manual_seed(seed)
    yield {"x": torch.randn(1000, generator=generator), "y": torch.full((1000,), float("nan"))}


def expected(specialization, args):
    """The right value of the output."""
    return {"y": args["x"] * specialization["factor"]}
