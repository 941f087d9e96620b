"""``mask_indices_by_tp``."""

from __future__ import annotations

import torch

from kernel_specs._matrices import as_matrix
from kernel_specs.config import get_pdl
from kernel_specs.moe._indices import check_number
from kernel_specs.moe.mask_indices_by_tp.spec import SPEC
from tkc.errors import ArgumentError
from tkc.runtime import KernelTable

__all__ = ["mask_indices_by_tp"]

_KERNELS = KernelTable(SPEC)
_DTYPES = {torch.int64: "int64", torch.int32: "int32"}


def mask_indices_by_tp(
    indices: torch.Tensor, n: int, num_ep_ranks: int, tp_rank: int, num_tp_ranks: int
) -> torch.Tensor:
    """Keep the experts that ranks with one tp rank hold, numbered without those of the others.

    Args:
        indices: ``[T, K]`` or any other shape, int64 or int32, contiguous: physical experts, negative for none.
        n: physical experts there are; a rank holds ``n // num_ep_ranks`` of them.
        num_ep_ranks: 1 to n.
        tp_rank, num_tp_ranks: which of the ranks that hold the same tokens.

    Returns:
        Like `indices`; -1 for experts of other ranks.

    Raises ArgumentError, before anything is launched, for anything else.
    """
    dtype = _DTYPES.get(indices.dtype)
    if dtype is None or not indices.is_contiguous():
        raise ArgumentError(
            f"indices has dtype {indices.dtype} and strides {list(indices.stride())}; expected int64 or "
            "int32, contiguous",
            argument="indices",
        )
    if not 1 <= num_ep_ranks <= n:
        raise ArgumentError(f"num_ep_ranks is {num_ep_ranks}; expected 1 to n, {n}", argument="num_ep_ranks")
    if not 0 <= tp_rank < num_tp_ranks:
        raise ArgumentError(
            f"tp_rank is {tp_rank} of {num_tp_ranks}; expected 0 to num_tp_ranks - 1", argument="tp_rank"
        )
    num_indices = check_number("indices", indices)
    masked = torch.empty_like(indices)
    if num_indices:
        launch = _KERNELS[indices.device, get_pdl(), dtype]
        launch(as_matrix(indices), as_matrix(masked), n // num_ep_ranks, num_tp_ranks, tp_rank)
    return masked
