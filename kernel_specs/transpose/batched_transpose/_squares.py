"""Through a tile whose every row, of `x` and of `out`, starts on a vector.

Threads load vectors along the rows of `x` and keep them in shared memory. Then each takes a square, `vector` rows
high, transposes it in registers, by renaming words (elements of 4 and 8 bytes) or permuting bytes (1 and 2 bytes),
and stores its columns as vectors of `out`.

Shared memory holds a row as it is, except that its vectors change places: vector `v` of the squares' row `s` lies at
`v ^ s % 8`. Squares that lie below one another so meet different banks, and no padding is needed.
"""

from dataclasses import dataclass
from typing import Any

import tilelang.language as T

from kernel_specs.transpose.batched_transpose._tile import VECTOR_BYTES, WARP, Tile

_VECTOR_WORDS = VECTOR_BYTES // 4
_SWIZZLED = 8


@dataclass(frozen=True, slots=True)
class Squares:
    """How a block's threads share the squares of a tile.

    Attributes:
        words: 4-byte words of a square's row: 4, or 1 where a square of whole vectors takes too many registers.
        lanes_m: lanes of a warp along a column of `x`: each store of a warp fills `16 * lanes_m` contiguous bytes.
    """

    tile: Tile
    words: int
    lanes_m: int

    @property
    def columns(self) -> int:
        """Columns of a square."""
        return 4 * self.words // self.tile.size_bytes

    @property
    def rounds(self) -> int:
        """Squares of a thread."""
        return self.tile.rows // self.tile.vector * (self.tile.columns // self.columns) // self.tile.threads

    @property
    def elements(self) -> int:
        """Shared memory that a tile takes."""
        return self.tile.rows * self.tile.columns


@T.macro
def move_squares(s: Squares, x: Any, out: Any, batch: Any, first_m: Any, first_n: Any, kept: Any) -> None:
    """Transpose the tile at row `first_m` and column `first_n` of matrix `batch`; `kept` has room for `s.elements`."""
    _load(s.tile, x, batch, first_m, first_n, kept)
    T.sync_threads()
    for round_ in T.unroll(s.rounds):
        _store(s, out, batch, first_m, first_n, kept, round_)


@T.macro
def _load(tile: Tile, x: Any, batch: Any, first_m: Any, first_n: Any, kept: Any) -> None:
    """Keep the tile in shared memory; all loads of a thread are in flight at once."""
    vectors = tile.columns // tile.vector
    rows_at_once = tile.threads // vectors
    loads = tile.rows // rows_at_once
    row, vector = T.get_thread_binding() // vectors, T.get_thread_binding() % vectors
    held = T.alloc_local((loads, _VECTOR_WORDS), "uint32")
    for i in T.unroll(loads):
        m, n = first_m + i * rows_at_once + row, first_n + vector * tile.vector
        if m < x.shape[1] and n < x.shape[2]:
            held[i, 0:_VECTOR_WORDS] = T.ldg128(x[batch, m, n])
    for i in T.unroll(loads):
        m, n = first_m + i * rows_at_once + row, first_n + vector * tile.vector
        if m < x.shape[1] and n < x.shape[2]:
            T.sts128(kept[_place(tile, i * rows_at_once + row, vector)], held[i, 0:_VECTOR_WORDS])


@T.macro
def _store(s: Squares, out: Any, batch: Any, first_m: Any, first_n: Any, kept: Any, round_: Any) -> None:
    """Transpose one square of each thread."""
    side, lanes_m, lanes_n = s.tile.vector, s.lanes_m, WARP // s.lanes_m
    warps_m = s.tile.rows // side // lanes_m
    lane, warp = T.get_thread_binding() % WARP, T.get_thread_binding() // WARP + round_ * s.tile.warps
    square_m = warp % warps_m * lanes_m + lane % lanes_m
    square_n = warp // warps_m * lanes_n + lane // lanes_m
    m, n = T.alloc_var("int32"), T.alloc_var("int32")
    m = first_m + square_m * side
    n = first_n + square_n * s.columns
    square, column = T.alloc_local((side, s.words), "uint32"), T.alloc_local((_VECTOR_WORDS,), "uint32")
    if m < out.shape[2] and n < out.shape[1]:
        for i in T.unroll(side):
            if s.words == _VECTOR_WORDS:
                square[i, 0:_VECTOR_WORDS] = T.lds128(kept[_place(s.tile, square_m * side + i, square_n)])
            else:
                vector, word = square_n // _VECTOR_WORDS, square_n % _VECTOR_WORDS
                square[i, 0] = T.lds32(kept[_place(s.tile, square_m * side + i, vector) + word * s.columns])
        if s.tile.size_bytes == 1:
            _interleave(square, s.words)
        for j in T.unroll(s.columns):
            for word in T.unroll(_VECTOR_WORDS):
                column[word] = _transposed_word(square, s.tile.size_bytes, j, word)
            T.stg128(out[batch, n + j, m], column[0:_VECTOR_WORDS])


def _place(tile: Tile, row: Any, vector: Any) -> Any:
    """Where the tile keeps a vector of one of its rows."""
    return row * tile.columns + (vector ^ (row // tile.vector % _SWIZZLED)) * tile.vector


@T.macro
def _interleave(square: Any, words: int) -> None:
    """Make 16-bit pairs of the bytes of rows 2i and 2i + 1: even columns' words in row 2i, odd ones' in 2i + 1."""
    pair = T.alloc_local((2,), "uint32")
    for i in T.unroll(8):
        for word in T.unroll(words):
            pair[0] = _permuted(square[2 * i, word], square[2 * i + 1, word], 0x5140)
            pair[1] = _permuted(square[2 * i, word], square[2 * i + 1, word], 0x7362)
            square[2 * i, word] = pair[0]
            square[2 * i + 1, word] = pair[1]


def _transposed_word(square: Any, size_bytes: int, j: Any, word: Any) -> Any:
    """Word `word` of column `j` of a square."""
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
