"""`cast`."""

from __future__ import annotations

import torch

from kernel_specs._matrices import as_matrix
from kernel_specs.config import get_pdl
from kernel_specs.quant.cast.spec import DTYPES, SPEC, STOCHASTIC
from tkc.errors import ArgumentError
from tkc.runtime import KernelTable

__all__ = ["cast"]

_KERNELS = KernelTable(SPEC)
_NAMES = {getattr(torch, name): name for name in DTYPES}


def cast(x: torch.Tensor, dtype: torch.dtype, stochastic_rounding: bool = False) -> torch.Tensor:
    """Give a copy of `x` in another dtype.

    Args:
        x: contiguous, any shape, of float32, float16, bfloat16, float8_e4m3fn or float8_e5m2.
        dtype: one of these. Values are rounded to nearest even; the 8-bit formats saturate, infinities too; every
            NaN becomes the one with all bits set. (Other dtypes, integers among them, are left to PyTorch.)
        stochastic_rounding: round each element up or down by chance, from a hash of its group of four and the place
            of that. From float32 to bfloat16 or float8_e4m3fn, and from bfloat16 to float8_e4m3fn; the number of
            elements must be a multiple of 4. Infinities become the largest finite value.

    Raises ArgumentError, before anything is launched, if `x` is not contiguous or the pair has no such rounding.
    """
    names = _NAMES.get(x.dtype), _NAMES.get(dtype)
    if stochastic_rounding:
        _check_stochastic(x, dtype, names)
    if None in names:
        return x.to(dtype, copy=True)
    if not x.is_contiguous():
        raise ArgumentError(
            f"x has strides {x.stride()} for shape {tuple(x.shape)}; expected contiguous. Pass x.contiguous()",
            argument="x",
        )
    if x.dtype == dtype:
        return x.clone()
    y = torch.empty_like(x, dtype=dtype)
    if x.numel():
        _KERNELS[x.device, get_pdl(), *names, bool(stochastic_rounding)](as_matrix(x), as_matrix(y))
    return y


def _check_stochastic(x: torch.Tensor, dtype: torch.dtype, names: tuple[str | None, str | None]) -> None:
    if names not in STOCHASTIC:
        known = ", ".join(f"{source} to {to}" for source, to in STOCHASTIC)
        raise ArgumentError(
            f"stochastic_rounding from {x.dtype} to {dtype} does not exist; there is {known}",
            argument="stochastic_rounding",
        )
    if x.numel() % 4:
        raise ArgumentError(f"x has {x.numel()} elements; stochastic rounding needs a multiple of 4", argument="x")
