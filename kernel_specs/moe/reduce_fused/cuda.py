"""``moe.reduce_fused`` for CUDA: a thread sums 16 bytes of the rows of eight picks at a time.

Each lane of a warp loads the position and the weight of one pick; shuffles give them to the others. A thread has
the loads of all eight rows in flight before it adds the first. A pick without a position has a row of zeros and the
factor -0, and adding ``0 * -0`` changes no sum, not even the sign of a zero: so no sum waits for a branch. Where an
address or a stride is no multiple of 16 bytes, the row no whole number of vectors, or a token has more picks than a
warp has lanes, threads sum single elements instead.
"""

from dataclasses import dataclass
from typing import Any

import tilelang.language as T

from kernel_specs._cuda import has_pdl
from kernel_specs.moe.reduce_fused.spec import out_dtype
from tkc.model import DType, Specialization, Target

PASS_CONFIGS: dict[str, object] = {"tl.disable_safe_memory_legalize": True}

_VECTOR = 16
_WARP = 32


@dataclass(frozen=True)
class Config:
    """Tuning choices.

    Attributes:
        threads: of a block; a multiple of a warp's 32.
        picks: rows of which a thread has loads in flight; a divisor of 32.
    """

    threads: int = 128
    picks: int = 8


DEFAULT = Config()


def build(specialization: Specialization, target: Target, config: Config = DEFAULT) -> Any:
    """Give the program, which serves any hidden size and number of picks."""
    dtype, to = specialization.str("dtype"), out_dtype(specialization)
    size_bytes, to_bytes = DType(dtype).size_bytes, DType(to).size_bytes
    width, threads, picks, pdl = _VECTOR // size_bytes, config.threads, config.picks, has_pdl(target)
    num_positions, hidden, num_tokens = T.dynamic("num_positions"), T.dynamic("hidden"), T.dynamic("num_tokens")
    num_scaled, num_weighted, num_weights = T.dynamic("num_scaled"), T.dynamic("num_weighted"), T.dynamic("num_weights")
    num_topk, num_sf, x_stride = T.dynamic("num_topk"), T.dynamic("num_sf"), T.dynamic("x_stride", "int64")
    chunks = T.ceildiv(hidden, width * threads)

    @T.macro
    def load_pick(topk_weights, token_topk_to_pos, token, position, weight):
        """Load the position of this lane's pick, -1 without one, and its weight."""
        lane = T.get_thread_binding() % _WARP
        position[0] = -1
        weight[0] = 1
        if lane < num_topk:
            position[0] = token_topk_to_pos[token, lane]
            if token < num_weighted and lane < num_weights:
                weight[0] = topk_weights[token, lane]
        if position[0] >= num_positions:
            position[0] = -1

    @T.macro
    def scale_pick(x_sf, position, weight, factor):
        """Give the factor of the row of this lane's pick."""
        factor[0] = weight[0]
        if position[0] >= 0 and position[0] < num_scaled:
            factor[0] = T.fmul(factor[0], x_sf[position[0]])
        if position[0] < 0:
            factor[0] = T.float32(-0.0)

    @T.macro
    def load_rows(x, position, first, column, rows):
        """Load a vector of the rows of the next picks, zeros where there is none."""
        positions = T.alloc_local((picks,), "int32")
        for k in T.unroll(picks):
            positions[k] = T.shfl_sync(position[0], first + k)
        for k in T.unroll(picks):
            for v in T.vectorized(width):
                rows[k, v] = T.Cast(dtype, T.float32(0))
            if positions[k] >= 0 and column < hidden:
                rows[k, 0:width] = T.reinterpret(T.ldg128(x[positions[k], column]), f"{dtype}x{width}")

    @T.macro
    def sum_vectors(x, x_sf, topk_weights, token_topk_to_pos, sf, out, token, column):
        """Sum this thread's vector of a row. Takes whole warps: their lanes share what they load."""
        position = T.alloc_local((1,), "int32")
        weight, factor = T.alloc_local((1,), "float32"), T.alloc_local((1,), "float32")
        rows, factors = T.alloc_local((picks, width), dtype), T.alloc_local((picks,), "float32")
        sums, result = T.alloc_local((width,), "float32"), T.alloc_local((width,), to)
        load_pick(topk_weights, token_topk_to_pos, token, position, weight)
        T.clear(sums)
        for step in T.serial(T.ceildiv(num_topk, picks)):
            load_rows(x, position, step * picks, column, rows)
            scale_pick(x_sf, position, weight, factor)
            for k in T.unroll(picks):
                factors[k] = T.shfl_sync(factor[0], step * picks + k)
            for k in T.unroll(picks):
                for v in T.unroll(width):
                    sums[v] = T.fma(T.cast(rows[k, v], "float32"), factors[k], sums[v])
        if num_sf > 0:
            scale = T.alloc_var("float32")
            scale = sf[T.if_then_else(num_sf > 1, token, 0)]
            for v in T.unroll(width):
                sums[v] = T.fmul(sums[v], scale)
        for v in T.vectorized(width):
            result[v] = T.Cast(to, sums[v])
        if column < hidden:
            store(out, token, column, result, width * to_bytes, width)

    @T.macro
    def sum_elements(x, x_sf, topk_weights, token_topk_to_pos, sf, out, token, first):
        """Sum this thread's elements of a row, one by one."""
        for i in T.unroll(width, unroll_factor=1):
            column = first + i * threads + T.get_thread_binding()
            if column < hidden:
                total, factor, position = T.alloc_var("float32"), T.alloc_var("float32"), T.alloc_var("int32")
                total = 0
                for k in T.unroll(num_topk, unroll_factor=1):
                    position = token_topk_to_pos[token, k]
                    if position >= 0 and position < num_positions:
                        factor = 1
                        if token < num_weighted and k < num_weights:
                            factor = topk_weights[token, k]
                        if position < num_scaled:
                            factor = T.fmul(factor, x_sf[position])
                        total = T.fma(T.cast(x[position, column], "float32"), factor, total)
                if num_sf > 0:
                    total = T.fmul(total, sf[T.if_then_else(num_sf > 1, token, 0)])
                out[token, column] = T.Cast(to, total)

    @T.prim_func
    def reduce_fused(
        x: T.StridedTensor[(num_positions, hidden), (x_stride, 1), dtype],
        x_sf: T.Tensor[(num_scaled,), "float32"],
        topk_weights: T.Tensor[(num_weighted, num_weights), "float32"],
        token_topk_to_pos: T.Tensor[(num_tokens, num_topk), "int32"],
        sf: T.Tensor[(num_sf,), "float32"],
        out: T.Tensor[(num_tokens, hidden), to],
    ):
        with T.Kernel(num_tokens * chunks, threads=threads) as block:
            token, first = T.alloc_var("int32"), T.alloc_var("int32")
            token = T.truncdiv(block, chunks)
            first = T.truncmod(block, chunks) * (threads * width)
            misaligned = T.alloc_var("int64")
            misaligned = address(x) | (x_stride | T.cast(hidden, "int64")) * size_bytes
            misaligned |= address(out) * (_VECTOR // (width * to_bytes))
            if pdl:
                T.pdl_sync()
            if misaligned % _VECTOR == 0 and num_topk <= _WARP:
                column = first + T.get_thread_binding() * width
                sum_vectors(x, x_sf, topk_weights, token_topk_to_pos, sf, out, token, column)
            else:
                sum_elements(x, x_sf, topk_weights, token_topk_to_pos, sf, out, token, first)
            if pdl:
                T.pdl_trigger()

    return reduce_fused


def address(tensor: Any) -> Any:
    """Where a tensor begins."""
    return T.call_extern("int64", "__cvta_generic_to_global", T.address_of(tensor[0, 0]))


@T.macro
def store(out: Any, token: Any, column: Any, result: Any, size_bytes: int, width: int) -> None:
    """Store a vector of 4, 8 or 16 bytes."""
    if size_bytes == 16:
        T.stg128(out[token, column], T.reinterpret(result[0:width], "uint32x4"))
    elif size_bytes == 8:
        T.stg64(out[token, column], T.reinterpret(result[0:width], "uint32x2"))
    else:
        T.stg32(out[token, column], T.reinterpret(result[0:width], "uint32"))
