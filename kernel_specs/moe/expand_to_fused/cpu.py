"""``moe.expand_to_fused`` for the CPU: plain loops."""

from typing import Any

import tilelang.cpu.language as T

from tkc.model import Specialization, Target


def build(specialization: Specialization, target: Target) -> Any:
    """Give the program, which serves any dtype and any width."""
    num_tokens, num_topk, row_bytes = T.dynamic("num_tokens"), T.dynamic("num_topk"), T.dynamic("row_bytes")
    num_scaled, num_sf = T.dynamic("num_scaled"), T.dynamic("num_sf")
    num_positions, num_scaled_positions = T.dynamic("num_positions"), T.dynamic("num_scaled_positions")
    x_stride, out_sf_stride_pos = T.dynamic("x_stride", "int64"), T.dynamic("out_sf_stride_pos", "int64")
    out_sf_stride = T.dynamic("out_sf_stride", "int64")

    @T.prim_func
    def expand_to_fused(
        x: T.StridedTensor[(num_tokens, row_bytes), (x_stride, 1), "uint8"],
        sf: T.Tensor[(num_scaled, num_sf), "int32"],
        token_topk_to_pos: T.Tensor[(num_tokens, num_topk), "int32"],
        pos_to_expert: T.Tensor[(num_positions,), "int32"],
        out: T.Tensor[(num_positions, row_bytes), "uint8"],
        out_sf: T.StridedTensor[(num_scaled_positions, num_sf), (out_sf_stride_pos, out_sf_stride), "int32"],
    ):
        with T.Kernel(1) as _:
            for token in T.serial(num_tokens):
                for k in T.serial(num_topk):
                    position = T.alloc_var("int32")
                    position = token_topk_to_pos[token, k]
                    if position >= 0 and position < num_positions:
                        for i in T.serial(row_bytes):
                            out[position, i] = x[token, i]
                        if token < num_scaled and position < num_scaled_positions:
                            for i in T.serial(num_sf):
                                out_sf[position, i] = sf[token, i]
            for position in T.serial(num_positions):
                if pos_to_expert[position] < 0:
                    for i in T.serial(row_bytes):
                        out[position, i] = T.uint8(0)
                    if position < num_scaled_positions:
                        for i in T.serial(num_sf):
                            out_sf[position, i] = 0

    return expand_to_fused
