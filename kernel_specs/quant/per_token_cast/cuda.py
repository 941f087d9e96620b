"""`per_token_cast` for CUDA: one pass, a warp to 512 columns of a row, no shared memory.

A lane owns 16 consecutive elements, 1 to 8 neighbouring lanes a block of the row. All loads of a lane's
rows are issued before the first is used; maxima travel by shuffles. Sizes, strides, input block sizes and
the clamp are launch-time values. Rows are dealt to warps one by one, so that small batches spread out.
"""

from dataclasses import dataclass
from typing import Any

import tilelang.language as T

from kernel_specs._cuda import has_pdl
from kernel_specs.quant import _cuda
from kernel_specs.quant._formats import PACK, SF_STORAGE, STORAGE
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


@dataclass(frozen=True, slots=True)
class _Plan:
    """What is fixed at compile time: the specialization, and how threads share its work."""

    mode: str
    x: str
    x_sf: str
    x_run: int
    fmt: str
    width: int
    sf: str
    stochastic: bool
    config: Config
    pdl: bool

    @property
    def lanes(self) -> int:
        """Lanes that share a block of a row."""
        return self.width // self.config.vector

    @property
    def runs(self) -> int:
        """Input scale factors of a lane's elements."""
        return self.config.vector // self.x_run

    @property
    def requantises(self) -> bool:
        return self.x_sf != "none"

    @property
    def raw(self) -> tuple[int, str]:
        """How many values, of which dtype, a lane's elements arrive in."""
        vector = self.config.vector
        return (vector // 8, "uint32") if self.x == "e2m1" else (vector, STORAGE[self.x].value)

    @property
    def stored_sf(self) -> str:
        """Dtype of a scale factor before packing."""
        return {"ue8m0": "int32", "e4m3": "float8_e4m3fn"}.get(self.sf, "float32")


def build(specialization: Specialization, target: Target, config: Config = DEFAULT) -> Any:
    plan = _Plan(config=config, pdl=has_pdl(target), **dict(specialization))
    num_tokens = T.dynamic("num_tokens")
    stored = T.dynamic("packed_hidden" if plan.x == "e2m1" else "hidden")
    hidden = stored * 2 if plan.x == "e2m1" else stored
    x_stride, out_stride = T.dynamic("x_stride", "int64"), T.dynamic("out_stride", "int64")
    columns = T.ceildiv(hidden, plan.width * PACK if plan.sf == "ue8m0" else plan.width)
    stored_out = hidden if plan.fmt == "e4m3" else T.floordiv(hidden, 2)
    XTensor = T.StridedTensor[(num_tokens, stored), (x_stride, 1), STORAGE[plan.x].value]
    OutTensor = T.StridedTensor[(num_tokens, stored_out), (out_stride, 1), STORAGE[plan.fmt].value]
    sf_rows = num_tokens if plan.mode == "precomputed" else T.dynamic("sf_rows")
    SfTensor = _sf_tensor("sf", (sf_rows, columns), plan.sf)
    InputSfTensor = _sf_tensor("x_sf", (T.dynamic("x_sf_rows"), T.dynamic("x_sf_columns")), plan.x_sf)

    if plan.requantises:
        return _requantise(plan, XTensor, InputSfTensor, OutTensor, SfTensor)
    if plan.mode == "sf_only":
        return _sf_only(plan, XTensor, SfTensor)
    if plan.mode == "precomputed":
        return _precomputed(plan, XTensor, SfTensor, OutTensor)
    return _cast(plan, XTensor, OutTensor, SfTensor)


def _cast(plan: _Plan, XTensor: Any, OutTensor: Any, SfTensor: Any) -> Any:
    @T.prim_func
    def per_token_cast(x: XTensor, out: OutTensor, sf: SfTensor, clamp_min: T.float32):
        _launch(plan, x, None, None, None, out, sf, clamp_min)

    return per_token_cast


def _requantise(plan: _Plan, XTensor: Any, InputSfTensor: Any, OutTensor: Any, SfTensor: Any) -> Any:
    @T.prim_func
    def per_token_cast(
        x: XTensor,
        x_sf: InputSfTensor,
        out: OutTensor,
        sf: SfTensor,
        x_block_m: T.int32,
        x_block_k: T.int32,
        clamp_min: T.float32,
    ):
        T.assume(x_block_m > 0)
        T.assume(x_block_k > 0)
        _launch(plan, x, x_sf, x_block_m, x_block_k, out, sf, clamp_min)

    return per_token_cast


def _sf_only(plan: _Plan, XTensor: Any, SfTensor: Any) -> Any:
    @T.prim_func
    def per_token_cast(x: XTensor, sf: SfTensor, clamp_min: T.float32):
        _launch(plan, x, None, None, None, None, sf, clamp_min)

    return per_token_cast


def _precomputed(plan: _Plan, XTensor: Any, SfTensor: Any, OutTensor: Any) -> Any:
    @T.prim_func
    def per_token_cast(x: XTensor, sf: SfTensor, out: OutTensor):
        _launch(plan, x, None, None, None, out, sf, None)

    return per_token_cast


def _sf_tensor(name: str, shape: tuple[Any, Any], kind: str) -> Any:
    strides = (T.dynamic(f"{name}_stride_m", "int64"), T.dynamic(f"{name}_stride_k", "int64"))
    return T.StridedTensor[shape, strides, SF_STORAGE.get(kind, SF_STORAGE["float32"]).value]


@T.macro
def _launch(plan, x, x_sf, x_block_m, x_block_k, out, sf, clamp_min):
    vector, rows, warps = plan.config.vector, plan.config.rows, plan.config.warps
    T.assume(x.shape[1] > 0)
    T.assume(x.shape[1] % 32 == 0)
    T.assume(x.strides[0] % (16 // STORAGE[plan.x].size_bytes) == 0)
    if out is not None:
        T.assume(out.strides[0] % 16 == 0)
    tiles = T.ceildiv(_hidden(plan, x), _WARP * vector)
    with T.Kernel(T.ceildiv(T.max(x.shape[0], sf.shape[0]), warps * rows) * tiles, threads=warps * _WARP) as block:
        thread = T.get_thread_binding()
        # Variables, so that the divisions are done once. A slot is a lane's place in its row, in vectors.
        first_row, slot = T.alloc_var("int32"), T.alloc_var("int32")
        first_row = T.truncdiv(block, tiles) * (warps * rows) + thread // _WARP
        slot = T.truncmod(block, tiles) * _WARP + thread % _WARP
        raw = T.alloc_local((rows, plan.raw[0]), plan.raw[1])
        factors = T.alloc_local((rows, plan.runs), "float32")
        values = T.alloc_local((vector,), "float32")
        if plan.pdl:
            T.pdl_sync()
        for u in T.unroll(rows):
            _load(plan, x, first_row + u * warps, slot, raw, u)
            if plan.requantises:
                _load_input_sf(plan, x, x_sf, x_block_m, x_block_k, first_row + u * warps, slot, factors, u)
            if plan.mode == "precomputed":
                _load_given_sf(plan, x, sf, first_row + u * warps, slot, factors, u)
        for u in T.unroll(rows):
            _decode(plan, raw, u, values)
            if plan.mode == "precomputed":
                factors[u, 0] = T.float32(1) / factors[u, 0]
            else:
                _reduce(plan, x, sf, clamp_min, first_row + u * warps, slot, values, factors, u)
            if plan.mode != "sf_only":
                for v in T.vectorized(vector):
                    values[v] = values[v] * factors[u, v // plan.x_run]
                _store(plan, x, out, first_row + u * warps, slot, values)
        if plan.pdl:
            T.pdl_trigger()


def _hidden(plan: _Plan, x: Any) -> Any:
    return x.shape[1] * 2 if plan.x == "e2m1" else x.shape[1]


def _inside(plan: _Plan, x: Any, row: Any, slot: Any) -> Any:
    """Whether a lane has elements in `row`."""
    return T.And(row < x.shape[0], slot * plan.config.vector < _hidden(plan, x))


def _words(packed: Any) -> Any:
    """The rows of a tensor of e2m1 pairs as words of eight elements; its row stride is a multiple of 8 bytes."""
    shape, strides = (packed.shape[0], packed.shape[1] // 4), (packed.strides[0] // 8 * 2, 1)
    return T.StridedTensor(shape, strides, "uint32", data=packed.data)


@T.macro
def _load(plan, x, row, slot, raw, u):
    count = plan.raw[0]
    if _inside(plan, x, row, slot):
        if plan.x == "e2m1":
            words = _words(x)
            for v in T.vectorized(count):
                raw[u, v] = words[row, slot * count + v]
        else:
            for v in T.vectorized(count):
                raw[u, v] = x[row, slot * count + v]
    else:
        for v in T.vectorized(count):
            raw[u, v] = T.cast(0, raw.dtype)


@T.macro
def _load_input_sf(plan, x, x_sf, x_block_m, x_block_k, row, slot, factors, u):
    for run in T.unroll(plan.runs):
        factors[u, run] = T.float32(0)
        if _inside(plan, x, row, slot):
            column = slot * plan.config.vector + run * plan.x_run
            m, k = T.truncdiv(row, x_block_m), T.truncdiv(column, x_block_k)
            factors[u, run] = _cuda.sf_at(x_sf, plan.x_sf, m, k, plan.x_run == 1 and x_block_k == 1)


@T.macro
def _load_given_sf(plan, x, sf, row, slot, factors, u):
    factors[u, 0] = T.float32(1)
    if _inside(plan, x, row, slot):
        factors[u, 0] = _cuda.sf_at(sf, plan.sf, row, slot // plan.lanes, False)


@T.macro
def _decode(plan, raw, u, values):
    if plan.x == "e2m1":
        for v in T.unroll(plan.config.vector):
            values[v] = _cuda.e2m1_value(raw[u, v // 8], v % 8)
    else:
        for v in T.vectorized(plan.config.vector):
            values[v] = T.cast(raw[u, v], "float32")


@T.macro
def _reduce(plan, x, sf, clamp_min, row, slot, values, factors, u):
    """Store the block's scale factor, and leave in `factors` what its elements are multiplied by."""
    amax, run_max = T.alloc_var("float32"), T.alloc_var("float32")
    amax = T.float32(0)
    for run in T.unroll(plan.runs):
        run_max = T.float32(0)
        for v in T.unroll(plan.x_run):
            run_max = T.max(run_max, T.abs(values[run * plan.x_run + v]))
        amax = T.max(amax, run_max * factors[u, run] if plan.requantises else run_max)
    for i in T.unroll(plan.lanes.bit_length() - 1):
        amax = T.max(amax, T.shfl_xor(amax, 1 << i))
    amax = T.max(amax, clamp_min)
    stored, inverse = T.alloc_var(plan.stored_sf), T.alloc_var("float32")
    stored, inverse = _cuda.sf_of(amax, plan.fmt, plan.sf), _cuda.inverse_of(amax, plan.fmt, plan.sf)
    _store_sf(plan, x, sf, row, slot, stored)
    for run in T.unroll(plan.runs):
        factors[u, run] = _cuda.finite(factors[u, run] * inverse) if plan.requantises else inverse


@T.macro
def _store_sf(plan, x, sf, row, slot, stored):
    """Store scale factors, and zeros where padding has no block."""
    block = slot // plan.lanes
    exists = block * plan.width < _hidden(plan, x)
    if plan.sf == "ue8m0":
        word = T.alloc_var("int32")
        word = T.if_then_else(T.And(row < x.shape[0], exists), stored << (block % PACK * 8), 0)
        for i in T.unroll(PACK.bit_length() - 1):
            word = word | T.shfl_xor(word, plan.lanes << i)
        if slot % (plan.lanes * PACK) == 0 and row < sf.shape[0] and exists:
            sf[row, block // PACK] = word
    elif slot % plan.lanes == 0 and row < sf.shape[0] and exists:
        sf[row, block] = T.if_then_else(row < x.shape[0], stored, T.cast(0, sf.dtype))


@T.macro
def _store(plan, x, out, row, slot, values):
    vector = plan.config.vector
    if plan.stochastic:
        _round_stochastically(plan, slot, values)
    if plan.fmt == "e2m1":
        count = vector // 8
        words, packed = _words(out), T.alloc_local((count,), "uint32")
        for v in T.unroll(count):
            packed[v] = _cuda.e2m1_word(values, 8 * v)
        for v in T.unroll(count):
            packed[v] = _cuda.e2m1_finished(packed[v])
        if _inside(plan, x, row, slot):
            for v in T.vectorized(count):
                words[row, slot * count + v] = packed[v]
    else:
        codes = T.alloc_local((vector,), "float8_e4m3fn")
        for v in T.vectorized(vector):
            codes[v] = T.cast(values[v], "float8_e4m3fn")
        if _inside(plan, x, row, slot):
            for v in T.vectorized(vector):
                out[row, slot * vector + v] = codes[v]


@T.macro
def _round_stochastically(plan, slot, values):
    hashed, random = T.alloc_var("uint32"), T.alloc_var("uint32")
    for four in T.unroll(plan.config.vector // 4):
        hashed = _cuda.stochastic_hash(values, 4 * four, slot * (plan.config.vector // 4) + four)
        random = _cuda.random_word(hashed)
        _cuda.round_four(values, 4 * four, random, plan.fmt)
