"""Philox4x32-10, seeded as cuRAND seeds it: the same numbers as ``curand_init(seed, sequence, 0)``."""

from typing import Any

import tilelang.language as T

_MULTIPLIERS = (0xD2511F53, 0xCD9E8D57)
_WEYL = (0x9E3779B9, 0xBB67AE85)
_ROUNDS = 10


@T.macro
def philox(seed: Any, sequence: Any, words: Any) -> None:
    """Fill `words`, four uint32 of this thread, with the first draws of a stream.

    Args:
        seed: uint32.
        sequence: int64, number of the stream.
    """
    words[0] = T.uint32(0)
    words[1] = T.uint32(0)
    words[2] = T.cast(sequence, "uint32")
    words[3] = T.cast(sequence >> T.int64(32), "uint32")
    key0, key1 = T.alloc_var("uint32"), T.alloc_var("uint32")
    key0, key1 = seed, T.uint32(0)
    low, high = T.alloc_var("uint64"), T.alloc_var("uint64")
    for _ in T.unroll(_ROUNDS):
        low = T.cast(words[0], "uint64") * T.uint64(_MULTIPLIERS[0])
        high = T.cast(words[2], "uint64") * T.uint64(_MULTIPLIERS[1])
        words[0] = T.cast(high >> T.uint64(32), "uint32") ^ words[1] ^ key0
        words[1] = T.cast(high, "uint32")
        words[2] = T.cast(low >> T.uint64(32), "uint32") ^ words[3] ^ key1
        words[3] = T.cast(low, "uint32")
        key0 += T.uint32(_WEYL[0])
        key1 += T.uint32(_WEYL[1])


@T.macro
def uniform(word: Any) -> Any:
    """A float32 above 0 and at most 1, as ``curand_uniform`` makes it of a draw."""
    return T.cast(word, "float32") * T.float32(2.0**-32) + T.float32(2.0**-33)
