"""`apply_rotary` for CPUs: head by head, pair by pair."""

from typing import Any

import tilelang.cpu.language as T

from kernel_specs.transform.apply_rotary._program import Axes, program
from tkc.model import Specialization, Target


def build(specialization: Specialization, target: Target) -> Any:
    dtype, index_dtype = specialization.str("dtype"), specialization["positions"]
    interleaved = bool(specialization["interleaved"])

    axes = Axes()
    num_batches, num_tokens, head_dim = axes.num_batches, axes.num_tokens, axes.head_dim

    @T.macro
    def rotate(x, batch, token, row, cache, sine_sign):
        half = head_dim // 2
        for head, j in T.grid(x.shape[2], half):
            cosine, sine, a, b = (T.alloc_var("float32") for _ in range(4))
            cosine, sine = 0.0, 0.0
            if row >= 0 and row < axes.num_positions:
                cosine = cache[row, j]
                sine = cache[row, half + j]
            sine = sine * sine_sign
            first, second = (2 * j, 2 * j + 1) if interleaved else (j, half + j)
            a = T.Cast("float32", x[batch, token, head, first])
            b = T.Cast("float32", x[batch, token, head, second])
            x[batch, token, head, first] = T.Cast(dtype, _fma(a, cosine, -(b * sine)))
            x[batch, token, head, second] = T.Cast(dtype, _fma(a, sine, b * cosine))

    @T.macro
    def rotate_both(query, key, cache, positions, rotate_key, sine_sign, seqlen_offset):
        with T.Kernel(num_tokens, num_batches) as (token, batch):
            row = T.alloc_var("int64")
            row = seqlen_offset + (token if index_dtype is None else T.Cast("int64", positions[batch, token]))
            rotate(query, batch, token, row, cache, sine_sign)
            if rotate_key != 0:
                rotate(key, batch, token, row, cache, sine_sign)

    return program(specialization, axes, rotate_both)


def _fma(a: Any, b: Any, c: Any) -> Any:
    """``a * b + c``, rounded once; C's fmaf, which needs no such instruction."""
    return T.call_extern("float32", "fmaf", a, b, c)
