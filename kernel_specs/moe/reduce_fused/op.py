"""``reduce_fused``."""

from __future__ import annotations

import torch

from kernel_specs._absent import absent
from kernel_specs.config import get_pdl
from kernel_specs.moe._checks import check_range, check_shape, checked_mode
from kernel_specs.moe.reduce_fused.spec import SPEC
from tkc.errors import ArgumentError, unknown_name
from tkc.runtime import KernelTable

__all__ = ["reduce_fused"]

_KERNELS = KernelTable(SPEC)
_DTYPES = {torch.bfloat16: "bfloat16", torch.float32: "float32", torch.float8_e4m3fn: "float8_e4m3fn"}
_FORMATS = ("", "e4m3")


def reduce_fused(
    x: torch.Tensor | tuple[torch.Tensor, torch.Tensor],
    topk_weights: torch.Tensor | None,
    token_topk_to_pos: torch.Tensor,
    fp8_format: str = "",
    sf: torch.Tensor | None = None,
    out: torch.Tensor | None = None,
) -> torch.Tensor:
    """Sum the rows of each token's picks, weighted: undo `expand_to_fused`.

    Args:
        x: ``[N, H]``, bfloat16, float32 or float8_e4m3fn, last stride 1, any row stride; or that, and a float32
            scale factor for each row, ``[N]``.
        topk_weights: ``[T, K]``, float32, contiguous; None: all 1.
        token_topk_to_pos: ``[T, K]``, int32, contiguous, from `get_fused_mapping`: -1 adds nothing, nor does any
            other position that is none (an error with ``TKC_CHECK=1``).
        fp8_format: ``e4m3``: the dtype of the result; empty: that of `x`.
        sf: float32, with `fp8_format` alone: a factor for the result, ``[1]``, or one a token, ``[T]``.
        out: ``[T, H]``, contiguous, to write into.

    Returns:
        ``[T, H]``: ``acc = fma(row, weight * scale factor, acc)`` for k in order, from 0, in float32; times `sf`;
        rounded once, e4m3 saturating.

    Raises ArgumentError, before anything is launched, for anything else.
    """
    data, x_sf = x if isinstance(x, tuple) else (x, None)
    dtype = _DTYPES.get(data.dtype)
    if dtype is None or data.dim() != 2:
        raise ArgumentError(
            f"x has dtype {data.dtype} and shape {list(data.shape)}; expected [N, H] of bfloat16, float32 or "
            "float8_e4m3fn",
            argument="x",
        )
    if token_topk_to_pos.dim() != 2:
        raise ArgumentError(
            f"token_topk_to_pos has shape {list(token_topk_to_pos.shape)}; expected [num_tokens, num_topk]",
            argument="token_topk_to_pos",
        )
    num_positions, hidden = data.shape
    num_tokens, num_topk = token_topk_to_pos.shape
    if topk_weights is not None:
        check_shape("topk_weights", topk_weights, num_tokens, num_topk)
    if x_sf is not None and x_sf.shape != (num_positions,):
        raise ArgumentError(
            f"the scale factors of x have shape {list(x_sf.shape)}; expected {[num_positions]}", argument="x"
        )
    if fp8_format or sf is not None:
        _check_format(fp8_format, sf, num_tokens)
    if checked_mode():
        check_range("token_topk_to_pos", token_topk_to_pos, -1, num_positions)
    to_e4m3 = bool(fp8_format) or dtype == "float8_e4m3fn"
    if out is None:
        out = data.new_empty(num_tokens, hidden, dtype=torch.float8_e4m3fn if to_e4m3 else None)
    if num_tokens and hidden:
        device = data.device
        _KERNELS[device, get_pdl(), dtype, to_e4m3](
            data,
            absent(device, torch.float32) if x_sf is None else x_sf,
            absent(device, torch.float32, 2) if topk_weights is None else topk_weights,
            token_topk_to_pos,
            absent(device, torch.float32) if sf is None else sf,
            out,
        )
    return out


def _check_format(fp8_format: str, sf: torch.Tensor | None, num_tokens: int) -> None:
    if fp8_format not in _FORMATS:
        raise ArgumentError(unknown_name("fp8_format", str(fp8_format), _FORMATS), argument="fp8_format")
    if sf is not None:
        if not fp8_format:
            raise ArgumentError("sf is given without fp8_format; it scales results in e4m3 alone", argument="sf")
        if sf.shape not in {(1,), (num_tokens,)}:
            raise ArgumentError(f"sf has shape {list(sf.shape)}; expected [1] or {[num_tokens]}", argument="sf")
