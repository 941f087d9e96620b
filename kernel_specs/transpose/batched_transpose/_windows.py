"""Through a tile whose rows, of `x` or of `out` or both, start anywhere, by vectors that all start on 16 bytes.

Of a row of `x` a tile needs `columns` elements. It loads the vectors that cover them, one more than they would fill:
its window begins `lead` elements, less than a vector, before the tile's first column. Each row has a lead of its own.
Shared memory holds the windows as they came; whoever reads an element adds the lead of its row.

Of a row of `out` a tile owes `rows` elements. It stores as many, but `late` of them, less than a vector, come from
above the tile's first row, and as many of its last rows are left to the tile below: so the window begins on a vector,
and the windows of neighbouring tiles meet. A tile therefore keeps a vector's more rows of `x` above its own, its halo;
and the tiles must reach a vector further down than the matrix, to store what the last windows left.

Only vectors that a matrix's edge cuts go element by element: at most the first and last of a row.
"""

from dataclasses import dataclass
from typing import Any

import tilelang.language as T

from kernel_specs.transpose.batched_transpose._tile import VECTOR_BYTES, WARP, Tile

_VECTOR_WORDS = VECTOR_BYTES // 4
_LOADS_IN_FLIGHT = 5
_LANES_M = 8


@dataclass(frozen=True, slots=True)
class Windows:
    """The windows of a tile in shared memory."""

    tile: Tile

    @property
    def rows(self) -> int:
        """Rows kept: the halo, then the tile's own."""
        return self.tile.vector + self.tile.rows

    @property
    def vectors(self) -> int:
        """Vectors of a row's window."""
        return self.tile.columns // self.tile.vector + 1

    @property
    def elements(self) -> int:
        """Shared memory that a tile takes: `place` of the row after the last one."""
        return (self.rows * self.vectors + self.rows // self.tile.vector) * self.tile.vector

    def place(self, row: Any) -> Any:
        """Where a row's window is kept. A gap after every `vector` rows spreads a column over the banks."""
        return (row * self.vectors + row // self.tile.vector) * self.tile.vector


@dataclass(frozen=True, slots=True)
class _Starts:
    """How far into a vector each row starts, in elements: `first` for row 0, `step` more for each row, modulo a vector.

    Tiles start on whole vectors of rows and columns, so rows may be counted from a tile's first one as well.
    """

    first: Any
    step: Any
    mask: int

    def __getitem__(self, row: Any) -> Any:
        return (self.first + (row & self.mask) * self.step) & self.mask


def rows_to_reach(tile: Tile, num_rows: Any) -> Any:
    """Rows that tiles must span together."""
    return num_rows + T.if_then_else(num_rows % tile.vector == 0, 0, tile.vector - 1)


@T.macro
def move_windows(w: Windows, x: Any, out: Any, batch: Any, first_m: Any, first_n: Any, kept: Any) -> None:
    """Transpose the tile at row `first_m` and column `first_n` of matrix `batch`; `kept` has room for `w.elements`."""
    tile, mask = w.tile, w.tile.vector - 1
    first, step = T.alloc_var("int32"), T.alloc_var("int32")
    address = T.call_extern("int64", "__cvta_generic_to_global", T.address_of(x[0, 0, 0]))
    first = T.cast((T.truncdiv(address, tile.size_bytes) + batch * x.strides[0]) & mask, "int32")
    step = T.cast(x.strides[1] & mask, "int32")
    leads = _Starts(first, step, mask)
    for round_ in T.serial(-(-w.rows * w.vectors // (tile.threads * _LOADS_IN_FLIGHT))):
        _load(w, leads, x, batch, first_m, first_n, kept, round_)
    T.sync_threads()
    lates = _Starts((batch & mask) * (out.shape[1] & mask) * (out.shape[2] & mask), out.shape[2] & mask, mask)
    for round_ in T.serial(tile.rows // tile.vector * tile.columns // tile.threads):
        _store(w, leads, lates, out, batch, first_m, first_n, kept, round_)


@T.macro
def _load(w: Windows, leads: _Starts, x: Any, batch: Any, first_m: Any, first_n: Any, kept: Any, round_: Any) -> None:
    """Keep `_LOADS_IN_FLIGHT` vectors of each thread; none of the halo where every row of `out` starts on a vector."""
    vector, num_columns = w.tile.vector, x.shape[2]
    top, bottom = T.alloc_var("int32"), T.alloc_var("int32")
    top = T.if_then_else(x.shape[1] % vector == 0, first_m, T.max(first_m - vector, 0))
    bottom = T.min(first_m + w.tile.rows, x.shape[1])
    held = T.alloc_local((_LOADS_IN_FLIGHT, _VECTOR_WORDS), "uint32")
    for i in T.unroll(_LOADS_IN_FLIGHT):
        row, place = _vector_of_thread(w, round_ * _LOADS_IN_FLIGHT + i)
        m, n = first_m - vector + row, first_n + place - leads[row]
        if m >= top and m < bottom and n < first_n + w.tile.columns and n >= 0 and n + vector <= num_columns:
            held[i, 0:_VECTOR_WORDS] = T.ldg128(x[batch, m, n])
    for i in T.unroll(_LOADS_IN_FLIGHT):
        row, place = _vector_of_thread(w, round_ * _LOADS_IN_FLIGHT + i)
        m, n = first_m - vector + row, first_n + place - leads[row]
        if m >= top and m < bottom and n < first_n + w.tile.columns:
            if n >= 0 and n + vector <= num_columns:
                T.sts128(kept[w.place(row) + place], held[i, 0:_VECTOR_WORDS])
            else:
                for e in T.unroll(vector, unroll_factor=1):
                    if n + e >= 0 and n + e < num_columns:
                        kept[w.place(row) + place + e] = x[batch, m, n + e]


def _vector_of_thread(w: Windows, number: Any) -> tuple[Any, Any]:
    """Row of the vector that a thread loads as its `number`-th, and where it begins in that row's window."""
    index = number * w.tile.threads + T.get_thread_binding()
    return index // w.vectors, index % w.vectors * w.tile.vector


@T.macro
def _store(
    w: Windows, leads: _Starts, lates: _Starts, out: Any, batch: Any, first_m: Any, first_n: Any, kept: Any, round_: Any
) -> None:
    """Store one vector of each thread."""
    vector, num_columns, num_rows = w.tile.vector, out.shape[1], out.shape[2]
    lanes_n, warps_m = WARP // _LANES_M, w.tile.rows // vector // _LANES_M
    lane, warp = T.get_thread_binding() % WARP, T.get_thread_binding() // WARP + round_ * w.tile.warps
    # A warp's columns are a bank apart: closer ones would meet in a bank where their rows' leads differ.
    apart = max(1, 4 // w.tile.size_bytes)
    column, row, m, n, at = (T.alloc_var("int32") for _ in range(5))
    column = (warp // warps_m // apart * lanes_n + lane // _LANES_M) * apart + warp // warps_m % apart
    row = (warp % warps_m * _LANES_M + lane % _LANES_M + 1) * vector - lates[column]
    m = first_m - vector + row
    n = first_n + column
    taken = T.alloc_local((vector,), out.dtype)
    if n < num_columns:
        if m >= 0 and m + vector <= num_rows:
            for i in T.unroll(vector):
                at = w.place(row + i) + leads[row + i] + column
                taken[i] = kept[at]
            T.stg128(out[batch, n, m], T.reinterpret(taken[0:vector], "uint32x4"))
        else:
            for i in T.unroll(vector, unroll_factor=1):
                if m + i >= 0 and m + i < num_rows:
                    at = w.place(row + i) + leads[row + i] + column
                    out[batch, n, m + i] = kept[at]
