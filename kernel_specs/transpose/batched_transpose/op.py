"""`transpose` and `batched_transpose`."""

from __future__ import annotations

import torch

from kernel_specs.config import get_pdl
from kernel_specs.transpose.batched_transpose.spec import DTYPES, SPEC
from tkc.errors import ArgumentError
from tkc.runtime import KernelTable

__all__ = ["batched_transpose", "transpose"]

_KERNELS = KernelTable(SPEC)
_CARRIERS = {size: getattr(torch, dtype.value) for size, dtype in DTYPES.items()}


def transpose(x: torch.Tensor) -> torch.Tensor:
    """Transpose a matrix.

    Args:
        x: ``[M, N]``, any dtype of 1, 2, 4 or 8 bytes; last stride 1, any row stride, any alignment.

    Returns:
        ``[N, M]``, dtype of `x`, contiguous. M and N may be 0.

    Raises ArgumentError for any other rank, stride or dtype. Definition: ``out[n, m] = x[m, n]``, bit for bit.
    """
    if x.dim() != 2:
        raise ArgumentError(f"x has shape {tuple(x.shape)}; expected a matrix [M, N]", argument="x")
    num_rows, num_columns = x.shape
    out = x.new_empty(num_columns, num_rows)
    if out.numel():
        _launch(x.unsqueeze(0), out.unsqueeze(0))
    return out


def batched_transpose(x: torch.Tensor) -> torch.Tensor:
    """Transpose each matrix of a batch.

    Args:
        x: ``[B, M, N]``, any dtype of 1, 2, 4 or 8 bytes; last stride 1, any other strides, any alignment.

    Returns:
        ``[B, N, M]``, dtype of `x`, contiguous. Any size may be 0.

    Raises ArgumentError for any other rank, stride or dtype. Definition: ``out[b, n, m] = x[b, m, n]``, bit for
    bit.
    """
    if x.dim() != 3:
        raise ArgumentError(f"x has shape {tuple(x.shape)}; expected [B, M, N]", argument="x")
    num_batches, num_rows, num_columns = x.shape
    out = x.new_empty(num_batches, num_columns, num_rows)
    if out.numel():
        _launch(x, out)
    return out


def _launch(x: torch.Tensor, out: torch.Tensor) -> None:
    size_bytes = x.element_size()
    carrier = _CARRIERS.get(size_bytes)
    if carrier is None:
        raise ArgumentError(f"x has dtype {x.dtype}; expected one of 1, 2, 4 or 8 bytes", argument="x")
    if x.dtype is not carrier:
        x, out = x.view(carrier), out.view(carrier)
    _KERNELS[x.device, get_pdl(), size_bytes](x, out)
