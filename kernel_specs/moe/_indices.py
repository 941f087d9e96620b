"""What operators on tensors of indices share on the host. Needs torch."""

from __future__ import annotations

from typing import Any

import torch

from kernel_specs._absent import absent
from tkc.errors import ArgumentError

_INT32_MAX = 2**31 - 1
_MAX_SLICES = 64
"""Most slices: with so many, adding their counts is one trip to memory."""

_SLICE = 1024
"""Indices that are worth a slice."""

_ROWS_AT_ONCE = 8
"""Slices whose counts a block adds at once."""


def room_for_partial_counts(indices: torch.Tensor, num_groups: int) -> Any:
    """Uninitialised counts for each slice that `indices` are counted in, whatever the device; none for one slice."""
    numbered = _INT32_MAX // num_groups - _ROWS_AT_ONCE  # slices whose counts int32 can number, and those after them
    num_slices = min(_MAX_SLICES, indices.numel() // _SLICE, numbered)
    if num_slices < 2:
        return absent(indices.device, torch.int32)
    return indices.new_empty(num_slices * num_groups, dtype=torch.int32)


def check_number(name: str, indices: torch.Tensor) -> int:
    """How many indices there are. Raises ArgumentError for more than a kernel can number."""
    num_indices = indices.numel()
    if num_indices > _INT32_MAX:
        raise ArgumentError(
            f"{name} has {num_indices} entries; expected less than 2^31. Pass parts of it", argument=name
        )
    return num_indices
