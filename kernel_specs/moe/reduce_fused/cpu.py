"""``moe.reduce_fused`` for the CPU: plain loops."""

from typing import Any

import tilelang.cpu.language as T

from kernel_specs.moe.reduce_fused.spec import out_dtype
from kernel_specs.quant._cpu import codes, decoded, encoded
from tkc.model import Specialization, Target


def build(specialization: Specialization, target: Target) -> Any:
    """Give the program, which serves any hidden size and number of picks."""
    dtype, to = specialization.str("dtype"), out_dtype(specialization)
    num_positions, hidden, num_tokens = T.dynamic("num_positions"), T.dynamic("hidden"), T.dynamic("num_tokens")
    num_scaled, num_weighted, num_weights = T.dynamic("num_scaled"), T.dynamic("num_weighted"), T.dynamic("num_weights")
    num_topk, num_sf, x_stride = T.dynamic("num_topk"), T.dynamic("num_sf"), T.dynamic("x_stride", "int64")

    @T.prim_func
    def reduce_fused(
        x: T.StridedTensor[(num_positions, hidden), (x_stride, 1), dtype],
        x_sf: T.Tensor[(num_scaled,), "float32"],
        topk_weights: T.Tensor[(num_weighted, num_weights), "float32"],
        token_topk_to_pos: T.Tensor[(num_tokens, num_topk), "int32"],
        sf: T.Tensor[(num_sf,), "float32"],
        out: T.Tensor[(num_tokens, hidden), to],
    ):
        with T.Kernel(num_tokens) as token:
            for column in T.serial(hidden):
                total, factor = T.alloc_var("float32"), T.alloc_var("float32")
                total = 0
                for k in T.serial(num_topk):
                    position = T.alloc_var("int32")
                    position = token_topk_to_pos[token, k]
                    if position >= 0 and position < num_positions:
                        factor = 1
                        if token < num_weighted and k < num_weights:
                            factor = topk_weights[token, k]
                        if position < num_scaled:
                            factor = factor * x_sf[position]
                        element = decoded(codes(x)[position, column], dtype)
                        total = _fma(element, factor, total)
                if num_sf > 0:
                    total = total * sf[T.if_then_else(num_sf > 1, token, 0)]
                codes(out)[token, column] = encoded(total, to)

    return reduce_fused


def _fma(a: Any, b: Any, c: Any) -> Any:
    """``a * b + c``, rounded once; C's fmaf, which needs no such instruction."""
    return T.call_extern("float32", "fmaf", a, b, c)
