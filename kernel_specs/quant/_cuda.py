"""What the CUDA variants of the quantised operators share."""

from typing import Any

import tilelang.language as T


def is_aligned(*tensors: Any) -> Any:
    """Whether all tensors begin at multiples of 16 bytes."""
    address = T.int64(0)
    for tensor in tensors:
        address = address | T.call_extern("int64", "__cvta_generic_to_global", T.address_of(tensor[0]))
    return address % 16 == 0
