"""``expand_to_fused_with_sf``."""

from __future__ import annotations

import torch

from kernel_specs.moe._expand import expand
from tkc.errors import ArgumentError

__all__ = ["expand_to_fused_with_sf"]

_WORDS = (torch.float32, torch.int32)
_ROW_ALIGNMENT = 4
"""Words that a column of scale factors is padded to: 16 bytes."""


def expand_to_fused_with_sf(
    x: tuple[torch.Tensor, torch.Tensor],
    num_per_channels: int,
    token_topk_to_pos: torch.Tensor,
    pos_to_expert: torch.Tensor,
    use_tma_aligned_col_major_sf: bool = False,
) -> tuple[torch.Tensor, torch.Tensor]:
    """Copy each token's quantised row, and its scale factors, to the positions of its picks.

    Args:
        x: data ``[T, H]``, and scale factors ``[T, S]``, float32 or int32 (packed), contiguous.
        num_per_channels: elements of a scale factor: S is that of H, or a quarter of it if packed, rounded up.
        token_topk_to_pos, pos_to_expert: as in `expand_to_fused`.
        use_tma_aligned_col_major_sf: whether the scale factors of a channel lie together, each channel padded to
            16 bytes. Packed ones must.

    Returns:
        ``[N, H]`` and ``[N, S]``, dtypes as given.

    Raises ArgumentError, before anything is launched, for anything else.
    """
    data, sf = x
    _check_sf(data, sf, num_per_channels, use_tma_aligned_col_major_sf)
    num_positions, num_sf = pos_to_expert.numel(), sf.shape[1]
    if use_tma_aligned_col_major_sf:
        out_sf = _by_columns(sf, num_positions, num_sf)
    else:
        out_sf = sf.new_empty(num_positions, num_sf)
    words, out_words = (sf, out_sf) if sf.dtype is torch.int32 else (sf.view(torch.int32), out_sf.view(torch.int32))
    out = expand(data, token_topk_to_pos, pos_to_expert, words, out_words)
    return out, out_sf


def _by_columns(sf: torch.Tensor, num_positions: int, num_sf: int) -> torch.Tensor:
    """Room for the scale factors, those of a channel together; the padding after the last belongs to the storage."""
    rows = -(-num_positions // _ROW_ALIGNMENT) * _ROW_ALIGNMENT
    padded = sf.new_empty_strided((rows, num_sf), (1, rows))
    return padded if rows == num_positions else padded[:num_positions]


def _check_sf(data: torch.Tensor, sf: torch.Tensor, num_per_channels: int, by_columns: bool) -> None:
    if sf.dtype not in _WORDS:
        raise ArgumentError(f"the scale factors have dtype {sf.dtype}; expected float32 or int32", argument="x")
    packed = sf.dtype is torch.int32
    if packed and not by_columns:
        raise ArgumentError(
            "the scale factors are packed (int32), so theirs must lie by columns; set use_tma_aligned_col_major_sf",
            argument="use_tma_aligned_col_major_sf",
        )
    if num_per_channels < 1:
        raise ArgumentError(
            f"num_per_channels is {num_per_channels}; expected at least 1, usually 32 or 128",
            argument="num_per_channels",
        )
    if data.dim() != 2:
        raise ArgumentError(f"the data has shape {list(data.shape)}; expected [num_tokens, hidden]", argument="x")
    hidden = data.shape[1] * (2 if data.dtype is torch.int8 else 1)  # two e2m1 elements a byte
    num_sf = -(-hidden // (num_per_channels * (4 if packed else 1)))
    if sf.shape != (data.shape[0], num_sf):
        raise ArgumentError(
            f"the scale factors have shape {list(sf.shape)}; expected {[data.shape[0], num_sf]}: one for "
            f"{num_per_channels} of {hidden} elements{', four to a word' if packed else ''}",
            argument="x",
        )
