"""`batched_transpose` for CUDA: a block moves a tile of `x` through shared memory, 16 bytes an access on both sides.

A transpose moves each byte once each way, so what counts is how device memory is touched: whole vectors of 16 bytes,
128 or 256 contiguous bytes of a row at a time, and many of them in flight. A block loads such a tile along the
rows of `x`, meets its threads once, and stores it along the rows of `out`.

There are two ways through a tile:

* `_squares`, where every address, stride and size is a multiple of 16 bytes;
* `_windows`, for all other matrices: the same accesses and more arithmetic, a quarter to a third slower for elements
  of 2 bytes, up to twice as slow for single bytes.

Which one is taken is decided at launch, from the arguments, by all blocks alike: the base address of `x` counts, and
no specialization knows it. So both are in one kernel, over one tile and one piece of shared memory, and neither takes
so many registers that it costs the other a block.

Consecutive blocks walk down the columns of `x`, and so along the rows of `out`.
"""

from dataclasses import dataclass
from typing import Any

import tilelang.language as T

from kernel_specs._cuda import has_pdl
from kernel_specs.transpose.batched_transpose._squares import Squares, move_squares
from kernel_specs.transpose.batched_transpose._tile import VECTOR_BYTES, Tile
from kernel_specs.transpose.batched_transpose._windows import Windows, move_windows, rows_to_reach
from kernel_specs.transpose.batched_transpose.spec import DTYPES
from tkc.model import Specialization, Target

# Both ways guard their own accesses, and meet at a barrier of their own.
PASS_CONFIGS: dict[str, object] = {
    "tl.disable_safe_memory_legalize": True,
    "tl.disable_thread_storage_sync": True,
}


@dataclass(frozen=True, slots=True)
class Config:
    """How blocks share the matrix.

    Attributes:
        rows, columns: of `x` in a tile.
        warps: of a block.
        words, lanes_m: of `Squares`.
        blocks_per_sm: blocks that must fit on a multiprocessor; it caps registers.
    """

    rows: int
    columns: int
    warps: int = 8
    words: int = 4
    lanes_m: int = 16
    blocks_per_sm: int = 4


def tuned(size_bytes: int, target: Target) -> Config:
    """The fastest sharing of those timed on an H200, at 8192 rows of 7168 columns; elsewhere one without spills."""
    return {
        1: Config(128, 256, words=1, lanes_m=8, blocks_per_sm=4 if target.name == "sm90" else 3),
        2: Config(128, 128),
        4: Config(64, 64, blocks_per_sm=5),
        8: Config(64, 32, blocks_per_sm=5),
    }[size_bytes]


def build(specialization: Specialization, target: Target, config: Config | None = None) -> Any:
    size_bytes = specialization.int("size_bytes")
    config = config or tuned(size_bytes, target)
    dtype, pdl = DTYPES[size_bytes].value, has_pdl(target)
    tile = Tile(size_bytes, config.rows, config.columns, config.warps)
    squares, windows = Squares(tile, config.words, config.lanes_m), Windows(tile)

    num_batches, num_rows, num_columns = (
        T.dynamic("num_batches"),
        T.dynamic("num_rows"),
        T.dynamic("num_columns"),
    )
    stride_batch, stride_row = T.dynamic("stride_batch", "int64"), T.dynamic("stride_row", "int64")

    @T.prim_func
    def batched_transpose(
        x: T.StridedTensor[(num_batches, num_rows, num_columns), (stride_batch, stride_row, 1), dtype],
        out: T.Tensor[(num_batches, num_columns, num_rows), dtype],
    ):
        tiles_m = T.ceildiv(rows_to_reach(tile, num_rows), tile.rows)
        tiles_n = T.ceildiv(num_columns, tile.columns)
        with T.Kernel(tiles_m * tiles_n * num_batches, threads=tile.threads) as block:
            T.annotate_min_blocks_per_sm(config.blocks_per_sm)
            # Variables, so that each of these divisions is done once, and in 32 bits.
            batch, index, first_m, first_n = (T.alloc_var("int32") for _ in range(4))
            batch, index = T.truncdiv(block, tiles_m * tiles_n), T.truncmod(block, tiles_m * tiles_n)
            first_m, first_n = T.truncmod(index, tiles_m) * tile.rows, T.truncdiv(index, tiles_m) * tile.columns
            misaligned = T.alloc_var("int64")
            misaligned = T.call_extern("int64", "__cvta_generic_to_global", T.address_of(x[0, 0, 0]))
            misaligned |= (stride_row | num_rows | num_columns) * size_bytes
            misaligned |= T.if_then_else(num_batches > 1, stride_batch, 0) * size_bytes
            kept = T.alloc_shared((max(squares.elements, windows.elements),), dtype)
            if pdl:
                T.pdl_sync()
            if misaligned % VECTOR_BYTES == 0:
                move_squares(squares, x, out, batch, first_m, first_n, kept)
            else:
                move_windows(windows, x, out, batch, first_m, first_n, kept)
            if pdl:
                T.pdl_trigger()

    return batched_transpose
