"""What the CUDA variants of the quantised operators share."""

from typing import Any

import tilelang.language as T

from kernel_specs.quant._expressions import e2m1_top


def is_aligned(*tensors: Any, size_bytes: int = 16) -> Any:
    """Whether all tensors begin at multiples of `size_bytes`, a power of two."""
    address = T.int64(0)
    for tensor in tensors:
        first = tensor[(0,) * len(tensor.shape)]
        address = address | T.call_extern("int64", "__cvta_generic_to_global", T.address_of(first))
    return address % size_bytes == 0


def wide(index: Any) -> Any:
    """An index whose product with a stride does not overflow, by one instruction; strides themselves have 32 bits."""
    return T.cast(index, "int64")


def e2m1_word(values: Any, first: Any) -> Any:
    """Eight e2m1 codes, of `values` from `first` on, as one uint32; the first is lowest.

    Leading bytes, which begin with a code, are gathered by byte permutations: one instruction an element.
    """
    tops = [e2m1_top(values[first + i]) for i in range(8)]
    low, high = _leading_bytes(tops[0::2]), _leading_bytes(tops[1::2])
    return ((low >> 4) & T.uint32(0x0F0F0F0F)) | (high & T.uint32(0xF0F0F0F0))


def _leading_bytes(words: list[Any]) -> Any:
    a, b, c, d = words
    gathered = T.uint32(0x0073)
    return permuted(permuted(a, b, gathered), permuted(c, d, gathered), T.uint32(0x5410))


def permuted(low: Any, high: Any, selector: Any) -> Any:
    """Four bytes of the eight of two uint32, `low` first, that the four nibbles of `selector` number."""
    return T.call_extern("uint32", "__byte_perm", low, high, selector)
