"""`per_token_cast` for CUDA: one pass, a warp to 512 or 1024 columns of a row, no shared memory.

A lane owns 16 or 32 consecutive elements, 1 to 8 neighbouring lanes a block of the row. All loads of a lane's
rows are issued before the first is used; maxima travel by shuffles. Sizes, strides, input block sizes and
the clamp are launch-time values. Where there are few rows, a warp takes one of them, so that they spread out.
"""

from typing import Any

import tilelang.language as T

from kernel_specs._cuda import has_pdl
from kernel_specs.quant import _cuda, _expressions
from kernel_specs.quant._cuda import wide
from kernel_specs.quant._formats import STORAGE
from kernel_specs.quant.per_token_cast import _cuda_sf, _table
from kernel_specs.quant.per_token_cast._program import Plan, plan_of, program
from kernel_specs.quant.per_token_cast._shares import WARP, Config, Shares, looks_up, tuned
from tkc.model import Specialization, Target

PASS_CONFIGS = {"tl.disable_safe_memory_legalize": True}
"""Every access is guarded by hand; the pass would guard each element of a vector on its own."""


def build(specialization: Specialization, target: Target, config: Config | None = None) -> Any:
    plan = plan_of(specialization)
    shares = Shares(plan, config or tuned(plan), has_pdl(target))

    @T.macro
    def body(x, x_sf, x_block_m, x_block_k, out, sf, clamp_min):
        _launch(shares, plan, x, x_sf, (x_block_m, x_block_k), out, sf, clamp_min)

    return program(plan, body)


@T.macro
def _launch(shares, plan, x, x_sf, x_block, out, sf, clamp_min):
    rows, warps = shares.config.rows, shares.config.warps
    T.assume(x.shape[1] > 0)
    T.assume(x.shape[1] % 32 == 0)
    T.assume(x.strides[0] % (16 // STORAGE[plan.x].size_bytes) == 0)
    if out is not None:
        T.assume(out.strides[0] % 16 == 0)
    tiles = T.ceildiv(plan.hidden(x), WARP * shares.config.vector)
    total = T.max(x.shape[0], sf.shape[0])
    few = shares.config.few > 0 and wide(total) * tiles <= shares.config.few
    with T.Kernel(T.ceildiv(total, warps * T.if_then_else(few, 1, rows)) * tiles, threads=warps * WARP) as block:
        # Variables, so that the divisions are done once. A slot is a lane's place in its row, in vectors.
        group, slot = T.alloc_var("int32"), T.alloc_var("int32")
        group = T.truncdiv(block, tiles)
        slot = T.truncmod(block, tiles) * WARP + T.get_thread_binding() % WARP
        if shares.pdl:
            T.pdl_sync()
        if rows > 1 and few:
            _cast_rows(shares, plan, 1, x, x_sf, x_block, out, sf, clamp_min, group, slot)
        else:
            _cast_rows(shares, plan, rows, x, x_sf, x_block, out, sf, clamp_min, group, slot)
        if shares.pdl:
            T.pdl_trigger()


@T.macro
def _cast_rows(shares, plan, rows, x, x_sf, x_block, out, sf, clamp_min, group, slot):
    """Cast a lane's elements of `rows` rows."""
    warp, step = T.get_thread_binding() // WARP, shares.step
    first_row = T.alloc_var("int32")
    first_row = group * (shares.config.warps * rows) + warp * (rows if step == 1 else 1)
    raw = T.alloc_local((rows, shares.raw[0]), shares.raw[1])
    factors = T.alloc_local((rows, shares.runs), "float32")
    words = T.alloc_local((rows,), "int32")
    for u in T.unroll(rows):
        _load(shares, plan, x, first_row + u * step, slot, raw, u)
        inside = _inside(shares, plan, x, first_row + u * step, slot)
        if plan.requantises:
            _cuda_sf.load_of_input(shares, plan, x_sf, x_block, first_row + u * step, slot, inside, factors, u)
        if plan.mode == "precomputed":
            _cuda_sf.load_given(shares, plan, sf, first_row + u * step, slot, inside, factors, u)
    for u in T.unroll(rows):
        _cast_row(shares, plan, x, out, sf, clamp_min, first_row + u * step, slot, raw, factors, words, u)
    if shares.packs and step == 1:
        _cuda_sf.store_packed_rows(shares, plan, x, sf, first_row, slot, words, rows)


@T.macro
def _cast_row(shares, plan, x, out, sf, clamp_min, row, slot, raw, factors, words, u):
    values = T.alloc_local((shares.config.vector,), "float32")
    if not looks_up(plan):
        _decode(shares, plan, raw, u, values)
    if plan.mode == "precomputed":
        factors[u, 0] = T.float32(1) / factors[u, 0]
    else:
        _find_sf(shares, plan, x, sf, clamp_min, row, slot, raw, values, factors, words, u)
    if looks_up(plan):
        _store_looked_up(shares, plan, x, out, row, slot, raw, factors, u)
    elif plan.mode != "sf_only":
        for v in T.vectorized(shares.config.vector):
            values[v] = values[v] * factors[u, v // plan.x_run]
        _store(shares, plan, x, out, row, slot, values)


def _inside(shares: Shares, plan: Plan, x: Any, row: Any, slot: Any) -> Any:
    """Whether a lane has elements in `row`."""
    return T.And(row < x.shape[0], slot * shares.config.vector < plan.hidden(x))


def _words(data: Any) -> Any:
    """The rows of a tensor of bytes as words of eight e2m1 or four e4m3; its row stride is a multiple of 16 bytes."""
    shape, strides = (data.shape[0], data.shape[1] // 4), (data.strides[0] // 16 * 4, 1)
    return T.StridedTensor(shape, strides, "uint32", data=data.data)


@T.macro
def _load(shares, plan, x, row, slot, raw, u):
    count = shares.raw[0]
    if _inside(shares, plan, x, row, slot):
        if plan.x == "e2m1":
            for v in T.vectorized(count):
                raw[u, v] = _words(x)[wide(row), slot * count + v]
        else:
            for v in T.vectorized(count):
                raw[u, v] = x[wide(row), slot * count + v]
    else:
        for v in T.vectorized(count):
            raw[u, v] = T.cast(0, raw.dtype)


@T.macro
def _decode(shares, plan, raw, u, values):
    if plan.x == "e2m1":
        for v in T.unroll(shares.config.vector):
            values[v] = _expressions.e2m1_value(raw[u, v // 8], v % 8)
    else:
        for v in T.vectorized(shares.config.vector):
            values[v] = T.cast(raw[u, v], "float32")


@T.macro
def _find_sf(shares, plan, x, sf, clamp_min, row, slot, raw, values, factors, words, u):
    """Find and store the block's scale factor, and leave in `factors` what its elements are multiplied by.

    Packed ones of neighbouring rows are only gathered in `words`.
    """
    amax = T.alloc_var("float32")
    amax = T.float32(0)
    for run in T.unroll(shares.runs):
        run_max = _largest_of_run(shares, plan, raw, values, u, run)
        amax = T.max(amax, run_max * factors[u, run] if plan.requantises else run_max)
    for i in T.unroll(shares.lanes.bit_length() - 1):
        amax = T.max(amax, T.shfl_xor(amax, 1 << i))
    amax = T.max(amax, clamp_min)
    stored, inverse = T.alloc_var(shares.stored_sf), T.alloc_var("float32")
    stored, inverse = _expressions.sf_of(amax, plan.fmt, plan.sf), _expressions.inverse_of(amax, plan.fmt, plan.sf)
    if shares.packs:
        _cuda_sf.pack(shares, plan, x, row, slot, stored, words, u)
        if shares.step != 1:
            _cuda_sf.store_packed(shares, plan, x, sf, row, slot, words, u)
    else:
        _cuda_sf.store(shares, plan, x, sf, row, slot, stored)
    for run in T.unroll(shares.runs):
        factors[u, run] = _expressions.finite(factors[u, run] * inverse) if plan.requantises else inverse


@T.macro
def _largest_of_run(shares, plan, raw, values, u, run):
    """The largest magnitude of the elements that share an input scale factor."""
    run_max = T.alloc_var("float32")
    if looks_up(plan):
        run_max = _table.largest_magnitude(raw, u, run * (plan.x_run // 8), plan.x_run // 8)
    else:
        run_max = T.float32(0)
        for v in T.unroll(plan.x_run):
            run_max = T.max(run_max, T.abs(values[run * plan.x_run + v]))
    return run_max


@T.macro
def _store_looked_up(shares, plan, x, out, row, slot, raw, factors, u):
    """Store the products of codes and factors, without decoding them."""
    count, run_words = shares.config.vector // 4, plan.x_run // 8
    packed = T.alloc_local((count,), "uint32")
    for run in T.unroll(shares.runs):
        _table.requantise(raw, u, run * run_words, run_words, factors[u, run], packed)
    if _inside(shares, plan, x, row, slot):
        for v in T.vectorized(count):
            _words(out)[wide(row), slot * count + v] = packed[v]


@T.macro
def _store(shares, plan, x, out, row, slot, values):
    vector = shares.config.vector
    if plan.stochastic:
        _round_stochastically(shares, plan, slot, values)
    if plan.fmt == "e2m1":
        count = vector // 8
        packed = T.alloc_local((count,), "uint32")
        for v in T.unroll(count):
            packed[v] = _cuda.e2m1_word(values, 8 * v)
        if _inside(shares, plan, x, row, slot):
            for v in T.vectorized(count):
                _words(out)[wide(row), slot * count + v] = packed[v]
    else:
        codes = T.alloc_local((vector,), "float8_e4m3fn")
        for v in T.vectorized(vector):
            codes[v] = T.cast(values[v], "float8_e4m3fn")
        if _inside(shares, plan, x, row, slot):
            for v in T.vectorized(vector):
                out[wide(row), slot * vector + v] = codes[v]


@T.macro
def _round_stochastically(shares, plan, slot, values):
    hashed = T.alloc_var("uint32")
    for v in T.unroll(shares.config.vector):
        values[v] = _expressions.canonical(values[v])
    for four in T.unroll(shares.config.vector // 4):
        hashed = _expressions.stochastic_hash(values, 4 * four, slot * (shares.config.vector // 4) + four)
        _expressions.round_four(values, 4 * four, hashed, plan.fmt)
