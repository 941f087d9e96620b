"""``moe.expand_to_fused`` for CUDA: a token's row is read once, 16 bytes a thread, and written for each pick.

A thread has one vector of the row or, past its last one, one word of the scale factors: neither waits for the other.
The blocks after those of the tokens fill the padding with zeros: each lane of a warp looks at one position of a group.
They come last because their stores are one long run, which is written fastest on its own. Where an address, a stride
or the size of a row is no multiple of 16 bytes, threads move single bytes.
"""

from dataclasses import dataclass
from typing import Any

import tilelang.language as T

from kernel_specs._cuda import has_pdl
from tkc.model import Specialization, Target

PASS_CONFIGS: dict[str, object] = {"tl.disable_safe_memory_legalize": True}

_VECTOR = 16
_WARP = 32
_PICKS = 8
"""Positions that a thread loads before it writes to the first."""


@dataclass(frozen=True)
class Config:
    """Tuning choices.

    Attributes:
        threads: of a block; a multiple of a warp's 32.
        padding: positions of a group, among which a block looks for padding; at most 32.
    """

    threads: int = 128
    padding: int = 32


DEFAULT = Config()


def build(specialization: Specialization, target: Target, config: Config = DEFAULT) -> Any:
    """Give the program, which serves any dtype and any width."""
    threads, padding, pdl = config.threads, config.padding, has_pdl(target)
    num_tokens, num_topk, row_bytes = T.dynamic("num_tokens"), T.dynamic("num_topk"), T.dynamic("row_bytes")
    num_scaled, num_sf = T.dynamic("num_scaled"), T.dynamic("num_sf")
    num_positions, num_scaled_positions = T.dynamic("num_positions"), T.dynamic("num_scaled_positions")
    x_stride, out_sf_stride_pos = T.dynamic("x_stride", "int64"), T.dynamic("out_sf_stride_pos", "int64")
    out_sf_stride = T.dynamic("out_sf_stride", "int64")
    vectors = T.ceildiv(row_bytes, _VECTOR)
    items = vectors + T.if_then_else(num_scaled_positions > 0, num_sf, 0)
    chunks, groups = T.ceildiv(items, threads), T.ceildiv(num_positions, padding)

    @T.macro
    def copy_vector(x, token_topk_to_pos, out, token, vector):
        """Copy 16 bytes of a row to each of its positions."""
        positions, row = T.alloc_local((_PICKS,), "int32"), T.alloc_local((_VECTOR,), "uint8")
        row[0:_VECTOR] = T.reinterpret(T.ldg128(x[token, vector * _VECTOR]), f"uint8x{_VECTOR}")
        for step in T.serial(T.ceildiv(num_topk, _PICKS)):
            load_positions(token_topk_to_pos, token, step, positions)
            for k in T.unroll(_PICKS):
                if positions[k] >= 0 and positions[k] < num_positions:
                    T.stg128(out[positions[k], vector * _VECTOR], T.reinterpret(row[0:_VECTOR], "uint32x4"))

    @T.macro
    def copy_bytes(x, token_topk_to_pos, out, token, chunk):
        """Copy this block's part of a row byte by byte."""
        for i in T.unroll(_VECTOR, unroll_factor=1):
            byte = (chunk * _VECTOR + i) * threads + T.get_thread_binding()
            if byte < row_bytes:
                for k in T.unroll(num_topk, unroll_factor=1):
                    position = T.alloc_var("int32")
                    position = token_topk_to_pos[token, k]
                    if position >= 0 and position < num_positions:
                        out[position, byte] = x[token, byte]

    @T.macro
    def copy_word(sf, token_topk_to_pos, out_sf, token, place):
        """Copy a word of a token's scale factors to each of its positions."""
        positions, word = T.alloc_local((_PICKS,), "int32"), T.alloc_var("int32")
        word = sf[token, place]
        for step in T.serial(T.ceildiv(num_topk, _PICKS)):
            load_positions(token_topk_to_pos, token, step, positions)
            for k in T.unroll(_PICKS):
                if positions[k] >= 0 and positions[k] < num_scaled_positions:
                    out_sf[positions[k], place] = word

    @T.macro
    def copy(x, sf, token_topk_to_pos, out, out_sf, token, chunk):
        """Copy this block's part of a token to each of its positions."""
        item = chunk * threads + T.get_thread_binding()
        if (address(x) | x_stride | address(out) | T.cast(row_bytes, "int64")) % _VECTOR == 0:
            if item < vectors:
                copy_vector(x, token_topk_to_pos, out, token, item)
        else:
            copy_bytes(x, token_topk_to_pos, out, token, chunk)
        if item >= vectors and item < items and token < num_scaled:
            copy_word(sf, token_topk_to_pos, out_sf, token, item - vectors)

    @T.macro
    def clear_bytes(out, position, chunk):
        """Fill this block's part of a position with zeros byte by byte."""
        for i in T.unroll(_VECTOR, unroll_factor=1):
            byte = (chunk * _VECTOR + i) * threads + T.get_thread_binding()
            if byte < row_bytes:
                out[position, byte] = T.uint8(0)

    @T.macro
    def clear(pos_to_expert, out, out_sf, group, chunk):
        """Fill this block's part of a group's padding with zeros. Takes whole warps: a lane loads one expert."""
        item, lane = chunk * threads + T.get_thread_binding(), T.get_thread_binding() % _WARP
        zeros, expert = T.alloc_local((_VECTOR,), "uint8"), T.alloc_local((1,), "int32")
        T.clear(zeros)
        expert[0] = 0
        if lane < padding and group * padding + lane < num_positions:
            expert[0] = pos_to_expert[group * padding + lane]
        for i in T.serial(padding):
            position, owner = group * padding + i, T.alloc_var("int32")
            owner = T.shfl_sync(expert[0], i)
            if owner < 0:
                if (address(out) | T.cast(row_bytes, "int64")) % _VECTOR == 0:
                    if item < vectors:
                        T.stg128(out[position, item * _VECTOR], T.reinterpret(zeros[0:_VECTOR], "uint32x4"))
                else:
                    clear_bytes(out, position, chunk)
                if item >= vectors and item < items and position < num_scaled_positions:
                    out_sf[position, item - vectors] = 0

    @T.prim_func
    def expand_to_fused(
        x: T.StridedTensor[(num_tokens, row_bytes), (x_stride, 1), "uint8"],
        sf: T.Tensor[(num_scaled, num_sf), "int32"],
        token_topk_to_pos: T.Tensor[(num_tokens, num_topk), "int32"],
        pos_to_expert: T.Tensor[(num_positions,), "int32"],
        out: T.Tensor[(num_positions, row_bytes), "uint8"],
        out_sf: T.StridedTensor[(num_scaled_positions, num_sf), (out_sf_stride_pos, out_sf_stride), "int32"],
    ):
        with T.Kernel((num_tokens + groups) * chunks, threads=threads) as block:
            row, chunk = T.alloc_var("int32"), T.alloc_var("int32")
            row = T.truncdiv(block, chunks)
            chunk = T.truncmod(block, chunks)
            if pdl:
                T.pdl_sync()
            if row < num_tokens:
                copy(x, sf, token_topk_to_pos, out, out_sf, row, chunk)
            else:
                clear(pos_to_expert, out, out_sf, row - num_tokens, chunk)
            if pdl:
                T.pdl_trigger()

    return expand_to_fused


def address(tensor: Any) -> Any:
    """Where a tensor begins."""
    return T.call_extern("int64", "__cvta_generic_to_global", T.address_of(tensor[0, 0]))


@T.macro
def load_positions(token_topk_to_pos: Any, token: Any, step: Any, positions: Any) -> None:
    """Load the next positions of a token's picks, -1 past the last."""
    for k in T.unroll(_PICKS):
        positions[k] = -1
        if step * _PICKS + k < token_topk_to_pos.shape[1]:
            positions[k] = token_topk_to_pos[token, step * _PICKS + k]
