"""What the MoE operators ask of their arguments before a launch, and in checked mode of their values. Needs torch.

Checked mode (``TKC_CHECK=1``) reads values back from the device, so it synchronises; it cannot run while a
CUDA graph is captured.
"""

from __future__ import annotations

import torch

from tkc.errors import ArgumentError
from tkc.runtime.dispatch import settings


def checked_mode() -> bool:
    """Whether operators must verify values that only the device knows."""
    return settings().check


def check_shape(name: str, tensor: torch.Tensor, *shape: int) -> None:
    """Raise ArgumentError unless `tensor` has exactly this shape."""
    if tensor.shape != shape:
        raise ArgumentError(
            f"{name} has shape {list(tensor.shape)}; expected {list(shape)}. Pass a tensor of that shape",
            argument=name,
        )


def check_together(**tensors: torch.Tensor | None) -> None:
    """Raise ArgumentError unless all of these are given, or none."""
    missing = [name for name, tensor in tensors.items() if tensor is None]
    if missing and len(missing) < len(tensors):
        given = next(name for name in tensors if name not in missing)
        raise ArgumentError(f"{missing[0]} is None but {given} is given; pass both, or neither", argument=missing[0])


def check_range(name: str, values: torch.Tensor, low: int, high: int) -> None:
    """Checked mode: raise ArgumentError, naming the first value that is not in ``[low, high)``."""
    _refuse(name, values, (values < low) | (values >= high), f"expected {low} to {high - 1}")


def check_finite(name: str, values: torch.Tensor) -> None:
    """Checked mode: raise ArgumentError, naming the first value that is infinite or no number."""
    _refuse(name, values, ~values.isfinite(), "expected a finite number")


def _refuse(name: str, values: torch.Tensor, wrong: torch.Tensor, expected: str) -> None:
    if wrong.any():
        at = tuple(wrong.nonzero()[0].tolist())
        raise ArgumentError(f"{name}{list(at)} is {values[at].item()}; {expected}", argument=name)
