"""Small arithmetic on sizes, and the short names of dtypes."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tkc.errors import ArgumentError, unknown_name

if TYPE_CHECKING:
    import torch

__all__ = ["align", "ceil_div", "dtype_to_str", "is_power_of_two", "next_power_of_two", "str_to_dtype"]


def ceil_div(x: int, y: int) -> int:
    """`x` divided by the positive `y`, rounded up."""
    return -(-x // y)


def align(x: int, alignment: int) -> int:
    """The smallest multiple of `alignment` that is not below `x`."""
    return ceil_div(x, alignment) * alignment


def is_power_of_two(x: int) -> bool:
    """Whether `x` is 1, 2, 4, 8, …"""
    return x > 0 and x & (x - 1) == 0


def next_power_of_two(x: int) -> int:
    """The smallest power of two that is not below `x`; 1 for anything below 1."""
    return 1 << max(x - 1, 0).bit_length()


def dtype_to_str(dtype: torch.dtype) -> str:
    """The short name of `dtype`: fp32, bf16, e4m3, or e2m1 for the int8 that holds pairs of FP4 values.

    Raises ArgumentError, which is a ValueError, for any other.
    """
    names = {_torch_dtype(torch_name): name for name, torch_name in _TORCH_NAMES.items()}
    if dtype not in names:
        raise ArgumentError(f"dtype {dtype} has no short name; known: {_listing()}", argument="dtype")
    return names[dtype]


def str_to_dtype(name: str) -> torch.dtype:
    """The dtype that a short name stands for; the inverse of `dtype_to_str`.

    Raises ArgumentError, which is a ValueError, with the nearest name for an unknown one.
    """
    if name not in _TORCH_NAMES:
        raise ArgumentError(unknown_name("dtype", name, _TORCH_NAMES), argument="name")
    return _torch_dtype(_TORCH_NAMES[name])


_TORCH_NAMES = {"fp32": "float32", "bf16": "bfloat16", "e4m3": "float8_e4m3fn", "e2m1": "int8"}


def _torch_dtype(name: str) -> torch.dtype:
    import torch

    dtype: torch.dtype = getattr(torch, name)
    return dtype


def _listing() -> str:
    return ", ".join(f"{torch_name} ({name})" for name, torch_name in _TORCH_NAMES.items())
