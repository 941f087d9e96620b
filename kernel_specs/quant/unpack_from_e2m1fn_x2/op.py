"""`unpack_from_e2m1fn_x2`."""

from __future__ import annotations

import torch

from tkc.errors import ArgumentError

__all__ = ["unpack_from_e2m1fn_x2"]

_MAGNITUDES = (0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0)


def unpack_from_e2m1fn_x2(x: torch.Tensor, out_dtype: torch.dtype = torch.float32) -> torch.Tensor:
    """Give the values of packed e2m1 elements.

    Args:
        x: ``[..., L]``, int8 or uint8; a byte holds two elements, the first one in its low half.
        out_dtype: dtype of the result; every value is exact in all floating dtypes of 8 bits and more.

    Returns:
        ``[..., 2 L]``.

    Raises ArgumentError, which is a ValueError, for a tensor without dimensions or of another dtype.
    """
    if x.dim() == 0:
        raise ArgumentError("x has no dimensions; expected [..., L] bytes", argument="x")
    if x.dtype not in (torch.int8, torch.uint8):
        raise ArgumentError(f"x has dtype {x.dtype}; expected int8 or uint8", argument="x")
    byte = x.view(torch.uint8)
    codes = torch.stack((byte & 15, byte >> 4), dim=-1).flatten(-2).long()
    values = torch.tensor((*_MAGNITUDES, *(-m for m in _MAGNITUDES)), device=x.device)
    return values.to(out_dtype)[codes]
