"""Every rule for translating: importing this registers them all."""

from tkc.interpret import expressions, externs, intrinsics, random, statements, threads, tileops, vectors

__all__ = ["expressions", "externs", "intrinsics", "random", "statements", "threads", "tileops", "vectors"]
