"""`per_token_cast` for CUDA: one pass, a warp to 512 columns of a row, no shared memory.

A lane owns 16 consecutive elements, 1 to 8 neighbouring lanes a block of the row. All loads of a lane's
rows are issued before the first is used; maxima travel by shuffles. Sizes, strides, input block sizes and
the clamp are launch-time values. Rows are dealt to warps one by one, so that small batches spread out.
"""

from dataclasses import dataclass
from typing import Any

import tilelang.language as T

from kernel_specs._cuda import has_pdl
from kernel_specs.quant import _cuda, _expressions
from kernel_specs.quant._formats import PACK, STORAGE
from kernel_specs.quant.per_token_cast._program import Plan, plan_of, program
from tkc.model import Specialization, Target

PASS_CONFIGS = {"tl.disable_safe_memory_legalize": True}
"""Every access is guarded by hand; the pass would guard each element of a vector on its own."""

_WARP = 32


@dataclass(frozen=True, slots=True)
class Config:
    """How threads share the rows.

    Attributes:
        vector: elements of a lane: 16, or 32 where blocks are no narrower.
        rows: rows of a warp, loaded together.
        warps: warps of a thread block.
    """

    vector: int = 16
    rows: int = 2
    warps: int = 4


DEFAULT = Config()


def tuned(plan: Plan) -> Config:
    """The fastest sharing of those that were timed on an H200, at 8192 rows of 7168 columns."""
    if plan.requantises:
        return Config(vector=32, rows=1) if plan.x == "e4m3" and plan.width >= 32 else DEFAULT
    if plan.mode != "cast":
        return DEFAULT
    if plan.fmt == "e2m1":
        return Config(rows=4)  # bound by instructions: more of them in flight
    if plan.x == "float32" or plan.width < 32:
        return Config(rows=1)
    return Config(vector=32, rows=1 if plan.width >= 64 else 2)


@dataclass(frozen=True, slots=True)
class _Shares:
    """How one specialization's elements are shared by lanes."""

    plan: Plan
    config: Config
    pdl: bool

    @property
    def lanes(self) -> int:
        """Lanes that share a block of a row."""
        return self.plan.width // self.config.vector

    @property
    def runs(self) -> int:
        """Input scale factors of a lane's elements."""
        return self.config.vector // self.plan.x_run

    @property
    def raw(self) -> tuple[int, str]:
        """How many values, of which dtype, a lane's elements arrive in."""
        vector = self.config.vector
        return (vector // 8, "uint32") if self.plan.x == "e2m1" else (vector, STORAGE[self.plan.x].value)

    @property
    def stored_sf(self) -> str:
        """Dtype of a scale factor before packing."""
        return {"ue8m0": "int32", "e4m3": "float8_e4m3fn"}.get(self.plan.sf, "float32")


def build(specialization: Specialization, target: Target, config: Config | None = None) -> Any:
    plan = plan_of(specialization)
    shares = _Shares(plan, config or tuned(plan), has_pdl(target))

    @T.macro
    def body(x, x_sf, x_block_m, x_block_k, out, sf, clamp_min):
        _launch(shares, plan, x, x_sf, x_block_m, x_block_k, out, sf, clamp_min)

    return program(plan, body)


@T.macro
def _launch(shares, plan, x, x_sf, x_block_m, x_block_k, out, sf, clamp_min):
    vector, rows, warps = shares.config.vector, shares.config.rows, shares.config.warps
    T.assume(x.shape[1] > 0)
    T.assume(x.shape[1] % 32 == 0)
    T.assume(x.strides[0] % (16 // STORAGE[plan.x].size_bytes) == 0)
    if out is not None:
        T.assume(out.strides[0] % 16 == 0)
    tiles = T.ceildiv(plan.hidden(x), _WARP * vector)
    with T.Kernel(T.ceildiv(T.max(x.shape[0], sf.shape[0]), warps * rows) * tiles, threads=warps * _WARP) as block:
        thread = T.get_thread_binding()
        # Variables, so that the divisions are done once. A slot is a lane's place in its row, in vectors.
        first_row, slot = T.alloc_var("int32"), T.alloc_var("int32")
        first_row = T.truncdiv(block, tiles) * (warps * rows) + thread // _WARP
        slot = T.truncmod(block, tiles) * _WARP + thread % _WARP
        raw = T.alloc_local((rows, shares.raw[0]), shares.raw[1])
        factors = T.alloc_local((rows, shares.runs), "float32")
        values = T.alloc_local((vector,), "float32")
        if shares.pdl:
            T.pdl_sync()
        for u in T.unroll(rows):
            _load(shares, plan, x, first_row + u * warps, slot, raw, u)
            if plan.requantises:
                _load_input_sf(shares, plan, x, x_sf, x_block_m, x_block_k, first_row + u * warps, slot, factors, u)
            if plan.mode == "precomputed":
                _load_given_sf(shares, plan, x, sf, first_row + u * warps, slot, factors, u)
        for u in T.unroll(rows):
            _decode(shares, plan, raw, u, values)
            if plan.mode == "precomputed":
                factors[u, 0] = T.float32(1) / factors[u, 0]
            else:
                _reduce(shares, plan, x, sf, clamp_min, first_row + u * warps, slot, values, factors, u)
            if plan.mode != "sf_only":
                for v in T.vectorized(vector):
                    values[v] = values[v] * factors[u, v // plan.x_run]
                _store(shares, plan, x, out, first_row + u * warps, slot, values)
        if shares.pdl:
            T.pdl_trigger()


def _inside(shares: _Shares, plan: Plan, x: Any, row: Any, slot: Any) -> Any:
    """Whether a lane has elements in `row`."""
    return T.And(row < x.shape[0], slot * shares.config.vector < plan.hidden(x))


def _wide(index: Any) -> Any:
    """An index whose product with a stride does not overflow, by one instruction; strides themselves have 32 bits."""
    return T.cast(index, "int64")


def _words(packed: Any) -> Any:
    """The rows of a tensor of e2m1 pairs as words of eight elements; its row stride is a multiple of 8 bytes.

    Use the result where it is made: a variable would lend the tensor its name, in every message about it.
    """
    shape, strides = (packed.shape[0], packed.shape[1] // 4), (packed.strides[0] // 8 * 2, 1)
    return T.StridedTensor(shape, strides, "uint32", data=packed.data)


@T.macro
def _load(shares, plan, x, row, slot, raw, u):
    count = shares.raw[0]
    if _inside(shares, plan, x, row, slot):
        if plan.x == "e2m1":
            for v in T.vectorized(count):
                raw[u, v] = _words(x)[_wide(row), slot * count + v]
        else:
            for v in T.vectorized(count):
                raw[u, v] = x[_wide(row), slot * count + v]
    else:
        for v in T.vectorized(count):
            raw[u, v] = T.cast(0, raw.dtype)


@T.macro
def _load_input_sf(shares, plan, x, x_sf, x_block_m, x_block_k, row, slot, factors, u):
    for run in T.unroll(shares.runs):
        factors[u, run] = T.float32(0)
        if _inside(shares, plan, x, row, slot):
            column = slot * shares.config.vector + run * plan.x_run
            m, k = T.truncdiv(row, x_block_m), T.truncdiv(column, x_block_k)
            factors[u, run] = _expressions.sf_at(x_sf, plan.x_sf, m, k, plan.x_run == 1 and x_block_k == 1)


@T.macro
def _load_given_sf(shares, plan, x, sf, row, slot, factors, u):
    factors[u, 0] = T.float32(1)
    if _inside(shares, plan, x, row, slot):
        factors[u, 0] = _expressions.sf_at(sf, plan.sf, row, slot // shares.lanes, False)


@T.macro
def _decode(shares, plan, raw, u, values):
    if plan.x == "e2m1":
        for v in T.unroll(shares.config.vector):
            values[v] = _expressions.e2m1_value(raw[u, v // 8], v % 8)
    else:
        for v in T.vectorized(shares.config.vector):
            values[v] = T.cast(raw[u, v], "float32")


@T.macro
def _reduce(shares, plan, x, sf, clamp_min, row, slot, values, factors, u):
    """Store the block's scale factor, and leave in `factors` what its elements are multiplied by."""
    amax, run_max = T.alloc_var("float32"), T.alloc_var("float32")
    amax = T.float32(0)
    for run in T.unroll(shares.runs):
        run_max = T.float32(0)
        for v in T.unroll(plan.x_run):
            run_max = T.max(run_max, T.abs(values[run * plan.x_run + v]))
        amax = T.max(amax, run_max * factors[u, run] if plan.requantises else run_max)
    for i in T.unroll(shares.lanes.bit_length() - 1):
        amax = T.max(amax, T.shfl_xor(amax, 1 << i))
    amax = T.max(amax, clamp_min)
    stored, inverse = T.alloc_var(shares.stored_sf), T.alloc_var("float32")
    stored, inverse = _expressions.sf_of(amax, plan.fmt, plan.sf), _expressions.inverse_of(amax, plan.fmt, plan.sf)
    _store_sf(shares, plan, x, sf, row, slot, stored)
    for run in T.unroll(shares.runs):
        factors[u, run] = _expressions.finite(factors[u, run] * inverse) if plan.requantises else inverse


@T.macro
def _store_sf(shares, plan, x, sf, row, slot, stored):
    """Store scale factors, and zeros where padding has no block."""
    block = slot // shares.lanes
    exists = block * plan.width < plan.hidden(x)
    if plan.sf == "ue8m0":
        word = T.alloc_var("int32")
        word = T.if_then_else(T.And(row < x.shape[0], exists), stored << (block % PACK * 8), 0)
        for i in T.unroll(PACK.bit_length() - 1):
            word = word | T.shfl_xor(word, shares.lanes << i)
        if slot % (shares.lanes * PACK) == 0 and row < sf.shape[0] and exists:
            sf[_wide(row), _wide(block // PACK)] = word
    elif slot % shares.lanes == 0 and row < sf.shape[0] and exists:
        sf[_wide(row), _wide(block)] = T.if_then_else(row < x.shape[0], stored, T.cast(0, sf.dtype))


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
                _words(out)[_wide(row), slot * count + v] = packed[v]
    else:
        codes = T.alloc_local((vector,), "float8_e4m3fn")
        for v in T.vectorized(vector):
            codes[v] = T.cast(values[v], "float8_e4m3fn")
        if _inside(shares, plan, x, row, slot):
            for v in T.vectorized(vector):
                out[_wide(row), slot * vector + v] = codes[v]


@T.macro
def _round_stochastically(shares, plan, slot, values):
    hashed = T.alloc_var("uint32")
    for v in T.unroll(shares.config.vector):
        values[v] = _expressions.canonical(values[v])
    for four in T.unroll(shares.config.vector // 4):
        hashed = _expressions.stochastic_hash(values, 4 * four, slot * (shares.config.vector // 4) + four)
        _expressions.round_four(values, 4 * four, hashed, plan.fmt)
