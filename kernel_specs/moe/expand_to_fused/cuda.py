"""``moe.expand_to_fused`` for CUDA: a token's row is read once, 16 bytes a thread, and written for each pick.

Blocks past those of the tokens look for padding among a few positions each, and fill it with zeros. Where an
address, a stride or the size of a row is no multiple of 16 bytes, threads move single bytes.
"""

from dataclasses import dataclass
from typing import Any

import tilelang.language as T

from kernel_specs._cuda import has_pdl
from tkc.model import Specialization, Target

PASS_CONFIGS: dict[str, object] = {"tl.disable_safe_memory_legalize": True}

_VECTOR = 16
_PICKS = 8
"""Positions that a thread loads before it writes to the first."""


@dataclass(frozen=True)
class Config:
    """Tuning choices.

    Attributes:
        threads: of a block.
        vectors: of 16 bytes that a thread has of a row.
        padding: positions that a block looks at for padding.
    """

    threads: int = 128
    vectors: int = 1
    padding: int = 16


DEFAULT = Config()


def build(specialization: Specialization, target: Target, config: Config = DEFAULT) -> Any:
    """Give the program, which serves any dtype and any width."""
    threads, vectors, padding, pdl = config.threads, config.vectors, config.padding, has_pdl(target)
    num_tokens, num_topk, row_bytes = T.dynamic("num_tokens"), T.dynamic("num_topk"), T.dynamic("row_bytes")
    num_scaled, num_sf = T.dynamic("num_scaled"), T.dynamic("num_sf")
    num_positions, num_scaled_positions = T.dynamic("num_positions"), T.dynamic("num_scaled_positions")
    x_stride, out_sf_stride_pos = T.dynamic("x_stride", "int64"), T.dynamic("out_sf_stride_pos", "int64")
    out_sf_stride = T.dynamic("out_sf_stride", "int64")
    chunks = T.ceildiv(row_bytes, _VECTOR * vectors * threads)

    @T.macro
    def copy_row(x, token_topk_to_pos, out, token, chunk, aligned):
        """Copy this block's part of a row to each of its positions."""
        positions, row = T.alloc_local((_PICKS,), "int32"), T.alloc_local((vectors, _VECTOR), "uint8")
        for v in T.unroll(vectors):
            byte = ((chunk * vectors + v) * threads + T.get_thread_binding()) * _VECTOR
            if byte < row_bytes:
                if aligned != 0:
                    row[v, 0:_VECTOR] = T.reinterpret(T.ldg128(x[token, byte]), f"uint8x{_VECTOR}")
                else:
                    for i in T.serial(_VECTOR):
                        if byte + i < row_bytes:
                            row[v, i] = x[token, byte + i]
        for step in T.serial(T.ceildiv(num_topk, _PICKS)):
            load_positions(token_topk_to_pos, token, step, positions)
            for k in T.unroll(_PICKS):
                if positions[k] >= 0 and positions[k] < num_positions:
                    for v in T.unroll(vectors):
                        byte = ((chunk * vectors + v) * threads + T.get_thread_binding()) * _VECTOR
                        if byte < row_bytes:
                            if aligned != 0:
                                T.stg128(out[positions[k], byte], T.reinterpret(row[v, 0:_VECTOR], "uint32x4"))
                            else:
                                for i in T.serial(_VECTOR):
                                    if byte + i < row_bytes:
                                        out[positions[k], byte + i] = row[v, i]

    @T.macro
    def copy_sf(sf, token_topk_to_pos, out_sf, token):
        """Copy a token's scale factors to each of its positions."""
        positions = T.alloc_local((_PICKS,), "int32")
        for i in T.serial(T.ceildiv(num_sf, threads)):
            place = i * threads + T.get_thread_binding()
            if place < num_sf:
                word = T.alloc_var("int32")
                word = sf[token, place]
                for step in T.serial(T.ceildiv(num_topk, _PICKS)):
                    load_positions(token_topk_to_pos, token, step, positions)
                    for k in T.unroll(_PICKS):
                        if positions[k] >= 0 and positions[k] < num_scaled_positions:
                            out_sf[positions[k], place] = word

    @T.macro
    def clear_row(out, out_sf, position, aligned):
        """Fill a position with zeros."""
        zeros = T.alloc_local((_VECTOR,), "uint8")
        T.clear(zeros)
        for step in T.serial(T.ceildiv(row_bytes, _VECTOR * threads)):
            byte = (step * threads + T.get_thread_binding()) * _VECTOR
            if byte < row_bytes:
                if aligned != 0:
                    T.stg128(out[position, byte], T.reinterpret(zeros[0:_VECTOR], "uint32x4"))
                else:
                    for i in T.serial(_VECTOR):
                        if byte + i < row_bytes:
                            out[position, byte + i] = T.uint8(0)
        if position < num_scaled_positions:
            for i in T.serial(T.ceildiv(num_sf, threads)):
                place = i * threads + T.get_thread_binding()
                if place < num_sf:
                    out_sf[position, place] = 0

    @T.prim_func
    def expand_to_fused(
        x: T.StridedTensor[(num_tokens, row_bytes), (x_stride, 1), "uint8"],
        sf: T.Tensor[(num_scaled, num_sf), "int32"],
        token_topk_to_pos: T.Tensor[(num_tokens, num_topk), "int32"],
        pos_to_expert: T.Tensor[(num_positions,), "int32"],
        out: T.Tensor[(num_positions, row_bytes), "uint8"],
        out_sf: T.StridedTensor[(num_scaled_positions, num_sf), (out_sf_stride_pos, out_sf_stride), "int32"],
    ):
        with T.Kernel(num_tokens * chunks + T.ceildiv(num_positions, padding), threads=threads) as block:
            misaligned = T.alloc_var("int64")
            misaligned = T.call_extern("int64", "__cvta_generic_to_global", T.address_of(out[0, 0]))
            misaligned |= T.cast(row_bytes, "int64")
            if pdl:
                T.pdl_sync()
            aligned = T.alloc_var("int32")
            if block < num_tokens * chunks:
                misaligned |= T.call_extern("int64", "__cvta_generic_to_global", T.address_of(x[0, 0])) | x_stride
                aligned = T.cast(misaligned % _VECTOR == 0, "int32")
                token, chunk = T.alloc_var("int32"), T.alloc_var("int32")
                token = T.truncdiv(block, chunks)
                chunk = T.truncmod(block, chunks)
                copy_row(x, token_topk_to_pos, out, token, chunk, aligned)
                if chunk == 0 and token < num_scaled:
                    copy_sf(sf, token_topk_to_pos, out_sf, token)
            else:
                aligned = T.cast(misaligned % _VECTOR == 0, "int32")
                for i in T.serial(padding):
                    position = (block - num_tokens * chunks) * padding + i
                    if position < num_positions and pos_to_expert[position] < 0:
                        clear_row(out, out_sf, position, aligned)
            if pdl:
                T.pdl_trigger()

    return expand_to_fused


@T.macro
def load_positions(token_topk_to_pos: Any, token: Any, step: Any, positions: Any) -> None:
    """Load the next positions of a token's picks, -1 past the last."""
    for k in T.unroll(_PICKS):
        positions[k] = -1
        if step * _PICKS + k < token_topk_to_pos.shape[1]:
            positions[k] = token_topk_to_pos[token, step * _PICKS + k]
