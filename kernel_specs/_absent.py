"""What stands for tensors that a call leaves out. Needs torch."""

from __future__ import annotations

import functools
from typing import Any

import torch

from tkc.runtime import converted


@functools.cache
def absent(device: torch.device, dtype: torch.dtype, num_dims: int = 1) -> Any:
    """A launch argument of no elements: `num_dims` dimensions, the first of size 0, the others of size 1."""
    return converted(torch.empty((0, 1, 1)[:num_dims], dtype=dtype, device=device))
