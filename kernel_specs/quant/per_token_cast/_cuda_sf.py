"""Scale factors of the CUDA variant of `per_token_cast`: those of the input, those given, and those stored."""

from typing import Any

import tilelang.language as T

from kernel_specs.quant import _expressions
from kernel_specs.quant._cuda import is_aligned, wide
from kernel_specs.quant._formats import PACK


@T.macro
def load_of_input(shares, plan, x_sf, x_block, row, slot, inside, factors, u):
    """Load the scale factors of a lane's elements; zeros where it has none."""
    m = _divided(row, x_block, 0)
    for run in T.unroll(shares.runs):
        factors[u, run] = T.float32(0)
        if inside:
            k = _divided(slot * shares.config.vector + run * plan.x_run, x_block, 1)
            factors[u, run] = _expressions.sf_at(x_sf, plan.x_sf, m, k, plan.x_run == 1 and x_block[1] == 1)


@T.macro
def load_given(shares, plan, sf, row, slot, inside, factors, u):
    """Load the scale factor of a lane's block; 1 where it has none."""
    factors[u, 0] = T.float32(1)
    if inside:
        factors[u, 0] = _expressions.sf_at(sf, plan.sf, row, slot // shares.lanes, False)


@T.macro
def _divided(index: Any, sizes: Any, axis: int):
    """The quotient of an index and one of two launch-time sizes; by a shift where it can be, as a whole grid agrees.

    Both sizes are passed, in a tuple: a parameter would lend its name to the kernel's argument.
    """
    quotient = T.alloc_var("int32")
    if sizes[axis] & (sizes[axis] - 1) == 0:
        quotient = index >> (T.__ffs(sizes[axis]) - 1)
    else:
        quotient = T.truncdiv(index, sizes[axis])
    return quotient


@T.macro
def store(shares, plan, x, sf, row, slot, stored):
    """Store a row's scale factors that are not packed, and zeros where it is padding."""
    block = slot // shares.lanes
    if slot % shares.lanes == 0 and row < sf.shape[0] and block * plan.width < plan.hidden(x):
        sf[wide(row), wide(block)] = T.if_then_else(row < x.shape[0], stored, T.cast(0, sf.dtype))


@T.macro
def pack(shares, plan, x, row, slot, stored, words, u):
    """Gather a row's packed scale factors in ``words[u]``, zeros where padding has no block."""
    block = slot // shares.lanes
    exists = T.And(row < x.shape[0], block * plan.width < plan.hidden(x))
    word = T.alloc_var("int32")
    word = T.if_then_else(exists, stored << (block % PACK * 8), 0)
    for i in T.unroll(PACK.bit_length() - 1):
        word = word | T.shfl_xor(word, shares.lanes << i)
    words[u] = word


@T.macro
def store_packed(shares, plan, x, sf, row, slot, words, u):
    """Store a row's packed scale factors."""
    if _has_word(shares, plan, x, slot) and row < sf.shape[0]:
        sf[wide(row), wide(slot // (shares.lanes * PACK))] = words[u]


@T.macro
def store_packed_rows(shares, plan, x, sf, first_row, slot, words, rows):
    """Store the packed scale factors of neighbouring rows, as one vector where the layout allows it."""
    if _has_word(shares, plan, x, slot):
        column = slot // (shares.lanes * PACK)
        if rows > 1 and _by_columns(sf, rows) and first_row + rows <= sf.shape[0]:
            for u in T.vectorized(rows):
                _columns(sf, rows)[wide(column), first_row // rows, u] = words[u]
        else:
            for u in T.unroll(rows):
                if first_row + u < sf.shape[0]:
                    sf[wide(first_row + u), wide(column)] = words[u]


def _has_word(shares: Any, plan: Any, x: Any, slot: Any) -> Any:
    """Whether a lane is the first of those whose blocks share a word."""
    return T.And(slot % (shares.lanes * PACK) == 0, slot // shares.lanes * plan.width < plan.hidden(x))


def _by_columns(sf: Any, rows: int) -> Any:
    """Whether `rows` words of a column lie next to each other, aligned as a vector of theirs."""
    return T.And(T.And(sf.strides[0] == 1, sf.strides[1] % rows == 0), is_aligned(sf, size_bytes=4 * rows))


def _columns(sf: Any, rows: int) -> Any:
    """The columns of `sf` in vectors of `rows` words; use the result where it is made, as that of `_words`."""
    shape = (sf.shape[1], sf.shape[0] // rows, rows)
    return T.StridedTensor(shape, (sf.strides[1] // rows * rows, rows, 1), "int32", data=sf.data)
