"""Tensors of scale factors: how they lie in memory, how to allocate them, how to read and write them."""

from __future__ import annotations

import torch

PACK = 4
_DTYPES = {
    "float32": torch.float32,
    "pow2": torch.float32,
    "e4m3": torch.float8_e4m3fn,
    "ue8m0": torch.int32,
}


def sf_shape(num_tokens: int, hidden: int, block: tuple[int, int], kind: str) -> tuple[int, int]:
    """Shape of the scale factors of a ``[num_tokens, hidden]`` tensor in blocks of `block` rows and columns.

    Packed ones (`kind` ue8m0) hold 4 bytes a word, of neighbours in a row, or in a column if blocks are one column
    wide.
    """
    rows, columns = -(-num_tokens // block[0]), -(-hidden // block[1])
    if kind != "ue8m0":
        return rows, columns
    return (-(-rows // PACK), columns) if block[1] == 1 else (rows, -(-columns // PACK))


def sf_rows(rows: int, kind: str, column_major: bool) -> int:
    """Rows that scale factors have in memory: column-major ones are padded so that each column is 16-byte aligned."""
    alignment = (16 if kind == "e4m3" else 4) if column_major else 1
    return -(-rows // alignment) * alignment


def empty_sf(shape: tuple[int, int], kind: str, column_major: bool, device: torch.device) -> torch.Tensor:
    """Uninitialised scale factors of this shape with their padding: slice the first ``shape[0]`` rows for users."""
    if not column_major:
        return torch.empty(*shape, dtype=_DTYPES[kind], device=device)
    rows = sf_rows(shape[0], kind, True)
    return torch.empty_strided((rows, shape[1]), (1, rows), dtype=_DTYPES[kind], device=device)
