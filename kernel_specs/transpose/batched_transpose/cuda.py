"""`batched_transpose` for CUDA: squares of 16-byte rows, transposed in registers.

A thread loads a square whose rows are 16 bytes, transposes it by renaming words (4 and 8 byte elements)
or permuting bytes (1 and 2 byte elements), and stores 16-byte rows again. The lanes of a warp are laid out
so that both sides touch whole sectors. No shared memory, no barrier, all loads of a square in flight at once.

Where an address, a stride or a size is no multiple of 16 bytes, a block moves single elements through a
padded tile of shared memory instead. Every block decides that at launch, from the same arguments.
"""

from dataclasses import dataclass
from typing import Any

import tilelang.language as T

from kernel_specs._cuda import has_pdl
from kernel_specs.transpose.batched_transpose.spec import DTYPES
from tkc.model import Specialization, Target

_VECTOR_BYTES = 16
_WARP = 32


@dataclass(frozen=True, slots=True)
class Config:
    """How threads share the matrix.

    Attributes:
        lanes_n: lanes of a warp along a row of `x`; the others lie along a column. 4 gives loads of 64 and
            stores of 128 contiguous bytes, 8 the reverse.
        warps_m, warps_n: warps of a block along a column and along a row of `x`.
        along_rows: whether consecutive blocks walk along the rows of `x`, else along its columns.
        blocks_per_sm: blocks that must fit on a multiprocessor; it caps registers.
    """

    lanes_n: int = 4
    warps_m: int = 2
    warps_n: int = 4
    along_rows: bool = True
    blocks_per_sm: int = 2


def tuned(size_bytes: int) -> Config:
    """The fastest sharing of those that were timed on an H200, at 8192 rows of 7168 columns."""
    return Config(warps_m=1, blocks_per_sm=4) if size_bytes <= 2 else Config(along_rows=False)


def build(specialization: Specialization, target: Target, config: Config | None = None) -> Any:
    size_bytes = specialization.int("size_bytes")
    config = config or tuned(size_bytes)
    dtype = DTYPES[size_bytes].value
    side = _VECTOR_BYTES // size_bytes
    lanes_n, lanes_m = config.lanes_n, _WARP // config.lanes_n
    tile_m, tile_n = config.warps_m * lanes_m * side, config.warps_n * lanes_n * side
    threads = config.warps_m * config.warps_n * _WARP
    chunk = min(tile_m, tile_n, 64)
    padding = max(1, 4 // size_bytes)
    pdl = has_pdl(target)

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
        tiles_m, tiles_n = T.ceildiv(num_rows, tile_m), T.ceildiv(num_columns, tile_n)
        with T.Kernel(tiles_m * tiles_n * num_batches, threads=threads) as block:
            T.annotate_min_blocks_per_sm(config.blocks_per_sm)
            # Variables, so that each of these divisions is done once, and in 32 bits.
            batch, tile, first_m, first_n = (T.alloc_var("int32") for _ in range(4))
            batch, tile = T.truncdiv(block, tiles_m * tiles_n), T.truncmod(block, tiles_m * tiles_n)
            first_m = (T.truncdiv(tile, tiles_n) if config.along_rows else T.truncmod(tile, tiles_m)) * tile_m
            first_n = (T.truncmod(tile, tiles_n) if config.along_rows else T.truncdiv(tile, tiles_m)) * tile_n
            misaligned = T.alloc_var("int64")
            misaligned = T.call_extern("int64", "__cvta_generic_to_global", T.address_of(x[0, 0, 0]))
            misaligned |= (stride_row | num_rows | num_columns) * size_bytes
            misaligned |= T.if_then_else(num_batches > 1, stride_batch, 0) * size_bytes
            if pdl:
                T.pdl_sync()
            if misaligned % _VECTOR_BYTES == 0:
                lane, warp = T.get_thread_binding() % _WARP, T.get_thread_binding() // _WARP
                m, n = T.alloc_var("int32"), T.alloc_var("int32")
                m = first_m + (warp // config.warps_n * lanes_m + lane // lanes_n) * side
                n = first_n + (warp % config.warps_n * lanes_n + lane % lanes_n) * side
                square, row = T.alloc_local((side, 4), "uint32"), T.alloc_local((4,), "uint32")
                if m < num_rows and n < num_columns:
                    for i in T.unroll(side):
                        square[i, 0:4] = T.ldg128(x[batch, m + i, n])
                    if size_bytes == 1:
                        _interleave(square)
                    for j in T.unroll(side):
                        for word in T.unroll(4):
                            row[word] = _transposed_word(square, size_bytes, j, word)
                        T.stg128(out[batch, n + j, m], row[0:4])
            else:
                elements = T.alloc_shared((chunk, chunk + padding), dtype)
                for chunk_m, chunk_n in T.grid(tile_m // chunk, tile_n // chunk):
                    m0, n0 = first_m + chunk_m * chunk, first_n + chunk_n * chunk
                    for i, j in T.Parallel(chunk, chunk):
                        if m0 + i < num_rows and n0 + j < num_columns:
                            elements[i, j] = x[batch, m0 + i, n0 + j]
                    for j, i in T.Parallel(chunk, chunk):
                        if m0 + i < num_rows and n0 + j < num_columns:
                            out[batch, n0 + j, m0 + i] = elements[i, j]
            if pdl:
                T.pdl_trigger()

    return batched_transpose


@T.macro
def _interleave(square: Any) -> None:
    """Make 16-bit pairs of the bytes of rows 2i and 2i + 1: even columns' words in row 2i, odd ones' in 2i + 1."""
    pair = T.alloc_local((2,), "uint32")
    for i in T.unroll(8):
        for word in T.unroll(4):
            pair[0] = _permuted(square[2 * i, word], square[2 * i + 1, word], 0x5140)
            pair[1] = _permuted(square[2 * i, word], square[2 * i + 1, word], 0x7362)
            square[2 * i, word] = pair[0]
            square[2 * i + 1, word] = pair[1]


def _transposed_word(square: Any, size_bytes: int, j: Any, word: Any) -> Any:
    """Word `word` of column `j` of a square of loaded rows."""
    halves = 0x5410 + j % 2 * 0x2222
    if size_bytes == 8:
        return square[word // 2, 2 * j + word % 2]
    if size_bytes == 4:
        return square[word, j]
    if size_bytes == 2:
        return _permuted(square[2 * word, j // 2], square[2 * word + 1, j // 2], halves)
    low = 4 * word + j % 4 // 2
    return _permuted(square[low, j // 4], square[low + 2, j // 4], halves)


def _permuted(low: Any, high: Any, selector: Any) -> Any:
    return T.call_extern("uint32", "__byte_perm", low, high, T.Cast("uint32", selector))
