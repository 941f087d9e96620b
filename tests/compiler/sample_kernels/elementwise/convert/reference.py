"""The PyTorch reference."""

from __future__ import annotations

import torch


def convert(x: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    wide = x.float()
    if dtype.itemsize == 1:
        largest = torch.finfo(dtype).max
        wide = wide.clamp(-largest, largest)
    return wide.to(dtype)
