"""What the counting kernels share on the host: how many slices indices are cut into."""

from __future__ import annotations

MAX_SLICES = 64
"""Most slices: with so many, adding their counts is one trip to memory."""

_SLICE = 1024
"""Indices that are worth a slice."""


def num_slices(num_indices: int) -> int:
    """Slices that `num_indices` are counted in; independent of the device."""
    return max(1, min(MAX_SLICES, num_indices // _SLICE))
