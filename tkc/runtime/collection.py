"""Python's garbage collector, and when not to run it."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def paused_collection() -> Iterator[None]:
    """Run the block without a garbage collection in the middle.

    A full one looks at everything that torch brought with it, which takes 80 ms, as long as loading three hundred
    artifacts; and the objects that loading makes would set one off. Safe to nest and under threads: whoever
    paused it lets it go on.
    """
    if not gc.isenabled():
        yield
        return
    gc.disable()
    try:
        yield
    finally:
        gc.enable()
