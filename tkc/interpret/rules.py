"""Every rule for translating: importing this registers them all."""

from tkc.interpret import (
    atomics,
    bits,
    blocks,
    expressions,
    externs,
    intrinsics,
    loops,
    random,
    reductions,
    statements,
    threads,
    tileops,
    vectors,
    warps,
)

__all__ = [
    "atomics",
    "bits",
    "blocks",
    "expressions",
    "externs",
    "intrinsics",
    "loops",
    "random",
    "reductions",
    "statements",
    "threads",
    "tileops",
    "vectors",
    "warps",
]
