"""`apply_rotary` for CUDA: query and key in one launch, 16 bytes of each operand at a time.

A thread rotates the same few pairs of several heads of one token, so that it reads their cosines and sines
once; it loads all its heads before it rotates the first. Where an address or a stride is no multiple of
16 bytes, or the pairs of a head do not fill whole vectors, it moves single elements instead; every thread
decides that at launch, from the same arguments.
"""

from dataclasses import dataclass
from typing import Any

import tilelang.language as T

from kernel_specs._cuda import has_pdl
from kernel_specs.transform.apply_rotary._program import Axes, program
from tkc.model import DType, Specialization, Target

_VECTOR_BYTES = 16


@dataclass(frozen=True, slots=True)
class Config:
    """How threads share the heads.

    Attributes:
        threads: of a block.
        heads: consecutive heads of one token that a thread rotates; each has two vectors in flight.
        blocks_per_sm: blocks that must fit on a multiprocessor; it caps registers.
    """

    threads: int = 256
    heads: int = 2
    blocks_per_sm: int = 4


DEFAULT = Config()


def build(specialization: Specialization, target: Target, config: Config = DEFAULT) -> Any:
    dtype, index_dtype = specialization.str("dtype"), specialization["positions"]
    interleaved = bool(specialization["interleaved"])
    size_bytes = DType(dtype).size_bytes
    width = _VECTOR_BYTES // size_bytes
    heads, threads, pdl = config.heads, config.threads, has_pdl(target)

    axes = Axes()
    num_batches, num_tokens, head_dim = axes.num_batches, axes.num_tokens, axes.head_dim
    num_query_heads, num_key_heads = axes.num_query_heads, axes.num_key_heads
    num_positions, cache_stride = axes.num_positions, axes.cache_stride

    def num_blocks(num_heads: Any) -> Any:
        chunks = T.ceildiv(head_dim, 2 * width)
        return T.ceildiv(num_batches * num_tokens * T.ceildiv(num_heads, heads) * chunks, threads)

    # Pair v of a thread's 2 * width elements: `step` apart from the pair before, its second element `apart` later.
    step, apart = (2, 1) if interleaved else (1, width)

    @T.macro
    def rotate_vectors(x, batch, token, head, j, cache, row, sine_sign):
        half = head_dim // 2
        second = j * step + (width if interleaved else half)
        elements = T.alloc_local((heads, 2 * width), dtype)
        for k in T.unroll(heads):
            if head + k < x.shape[2]:
                elements[k, 0:width] = _load(x[batch, token, head + k, j * step], dtype)
                elements[k, width : 2 * width] = _load(x[batch, token, head + k, second], dtype)
        cosines, sines = T.alloc_local((width,), "float32"), T.alloc_local((width,), "float32")
        for v in T.unroll(width):
            cosines[v] = 0
            sines[v] = 0
        if row >= 0 and row < num_positions:
            for v in T.unroll(width // 4):
                cosines[v * 4 : v * 4 + 4] = _load(cache[row, j + v * 4], "float32")
                sines[v * 4 : v * 4 + 4] = _load(cache[row, half + j + v * 4], "float32")
        rotated = T.alloc_local((2 * width,), "float32")
        for k in T.unroll(heads):
            if head + k < x.shape[2]:
                for v in T.unroll(width):
                    a = T.Cast("float32", elements[k, v * step])
                    b = T.Cast("float32", elements[k, v * step + apart])
                    rotated[v * step] = T.fma(a, cosines[v], T.fmul(b, sines[v] * -sine_sign))
                    rotated[v * step + apart] = T.fma(a, sines[v] * sine_sign, T.fmul(b, cosines[v]))
                for v in T.vectorized(2 * width):
                    elements[k, v] = T.Cast(dtype, rotated[v])
                T.stg128(x[batch, token, head + k, j * step], _words(elements[k, 0:width]))
                T.stg128(x[batch, token, head + k, second], _words(elements[k, width : 2 * width]))

    @T.macro
    def rotate_elements(x, batch, token, head, j, cache, row, sine_sign):
        half = head_dim // 2
        for k, v in T.grid(heads, width):
            if head + k < x.shape[2] and j + v < half:
                cosine, sine = T.alloc_var("float32"), T.alloc_var("float32")
                cosine, sine = 0.0, 0.0
                if row >= 0 and row < num_positions:
                    cosine, sine = cache[row, j + v], cache[row, half + j + v]
                sine = sine * sine_sign
                first, second = T.alloc_var("int32"), T.alloc_var("int32")
                first = (j + v) * step
                second = first + (1 if interleaved else half)
                a, b = T.alloc_var("float32"), T.alloc_var("float32")
                a = T.Cast("float32", x[batch, token, head + k, first])
                b = T.Cast("float32", x[batch, token, head + k, second])
                x[batch, token, head + k, first] = T.Cast(dtype, T.fma(a, cosine, T.fmul(b, -sine)))
                x[batch, token, head + k, second] = T.Cast(dtype, T.fma(a, sine, T.fmul(b, cosine)))

    @T.macro
    def rotate(block, x, cache, positions, sine_sign, seqlen_offset):
        chunks, groups = T.ceildiv(head_dim, 2 * width), T.ceildiv(x.shape[2], heads)
        # Variables, so that each of these divisions is done once, and in 32 bits.
        j, head, token, batch = (T.alloc_var("int32") for _ in range(4))
        token = block * threads + T.get_thread_binding()
        j = T.truncmod(token, chunks) * width
        token = T.truncdiv(token, chunks)
        head = T.truncmod(token, groups) * heads
        token = T.truncdiv(token, groups)
        batch = T.truncdiv(token, num_tokens)
        token = T.truncmod(token, num_tokens)
        misaligned = T.alloc_var("int64")
        misaligned = _address(x[0, 0, 0, 0]) | _address(cache[0, 0]) | cache_stride * 4
        misaligned |= (x.strides[0] | x.strides[1] | x.strides[2] | head_dim // 2) * size_bytes
        if batch < num_batches:
            row = T.alloc_var("int64")
            row = seqlen_offset + (token if index_dtype is None else T.Cast("int64", positions[batch, token]))
            if misaligned % _VECTOR_BYTES == 0:
                rotate_vectors(x, batch, token, head, j, cache, row, sine_sign)
            else:
                rotate_elements(x, batch, token, head, j, cache, row, sine_sign)

    @T.macro
    def rotate_both(query, key, cache, positions, rotate_key, sine_sign, seqlen_offset):
        query_blocks = num_blocks(num_query_heads)
        with T.Kernel(query_blocks + rotate_key * num_blocks(num_key_heads), threads=threads) as block:
            T.annotate_min_blocks_per_sm(config.blocks_per_sm)
            if pdl:
                T.pdl_sync()
            if block < query_blocks:
                rotate(block, query, cache, positions, sine_sign, seqlen_offset)
            else:
                rotate(block - query_blocks, key, cache, positions, sine_sign, seqlen_offset)
            if pdl:
                T.pdl_trigger()

    return program(specialization, axes, rotate_both)


def _address(element: Any) -> Any:
    return T.call_extern("int64", "__cvta_generic_to_global", T.address_of(element))


def _load(first: Any, dtype: str) -> Any:
    """The 16 bytes that begin at an element, as a vector of its type."""
    return T.reinterpret(T.ldg128(first), f"{dtype}x{_VECTOR_BYTES // DType(dtype).size_bytes}")


def _words(elements: Any) -> Any:
    return T.reinterpret(elements, "uint32x4")
