"""Where buffers live: memory of the device, of a block, or of each thread, and access to it by index.

A memory is rows of bytes. Device memory is one row; block memory (shared, fragments) has one row a block;
thread memory (local) has one row a block while all its threads hold the same, and a row a thread once
they differ. Several buffers may view one memory with other shapes and types.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from enum import Enum
from typing import TYPE_CHECKING, Any

import numpy as np

from tkc.interpret.dtypes import Array
from tkc.interpret.errors import UnsupportedError
from tkc.interpret.frame import Frame, bits_equal

if TYPE_CHECKING:
    from tkc.interpret.shadow import Shadow

POISON = 0xFF
"""What memory holds before anything is written: NaN as a float, -1 as an integer."""


class Level(Enum):
    """Who shares a memory."""

    DEVICE = "device"
    BLOCK = "block"
    THREAD = "thread"


_LEVELS = {
    "global": Level.DEVICE,
    "local": Level.THREAD,
    "local.var": Level.THREAD,
    "local.fragment": Level.BLOCK,
    "local.reducer": Level.BLOCK,
    "shared": Level.BLOCK,
    "shared.dyn": Level.BLOCK,
    "shared.barrier": Level.BLOCK,
}


def level_of(scope: str) -> Level:
    """Who shares a buffer of this scope. Raises UnsupportedError for a scope without a model."""
    if scope not in _LEVELS:
        raise UnsupportedError(f"buffers of scope {scope!r}")
    return _LEVELS[scope]


@dataclass(eq=False)
class Memory:
    """Rows of bytes. `lead` are the sizes of the axes that rows are numbered by.

    Attributes:
        raw: the bytes, one row after another.
        row_bytes: bytes of a row, a multiple of eight.
        size_bytes: bytes of a row that the program may use.
    """

    name: str
    scope: str
    lead: tuple[int, ...]
    size_bytes: int
    raw: Array
    row_bytes: int
    level: Level
    address: int = 0
    shadow: Shadow | None = None
    _offsets: dict[int, Array] = field(default_factory=dict)

    @classmethod
    def allocate(cls, name: str, scope: str, lead: tuple[int, ...], size_bytes: int) -> Memory:
        """Fresh memory, poisoned."""
        row_bytes = -(-max(size_bytes, 1) // 8) * 8
        raw = np.full(math.prod(lead) * row_bytes, POISON, np.uint8)
        return cls(name, scope, lead, size_bytes, raw, row_bytes, level_of(scope))

    @classmethod
    def of_tensor(cls, name: str, raw: Array, address: int) -> Memory:
        """Device memory over the bytes of a tensor, which are written in place."""
        return cls(name, "global", (), raw.size, raw, raw.size, Level.DEVICE, address)

    def elements(self, kind: np.dtype[Any]) -> Array:
        """All bytes as unsigned integers as wide as elements of `kind`."""
        width = kind.itemsize
        return self.raw[: self.raw.size // width * width].view(np.dtype(f"u{width}"))

    def row_offset(self, frame: Frame, bits: int) -> Array:
        """Index of the first element of each lane's row."""
        if not self.lead:
            return np.int64(0)
        per_row = self.row_bytes * 8 // bits
        numbers = np.arange(math.prod(self.lead), dtype=np.int64).reshape(self.lead)
        return (numbers * per_row).reshape(self.lead + (1,) * (frame.rank - len(self.lead)))

    def spread(self, num_threads: int) -> None:
        """Give each thread its own row."""
        if self.lead[1] == 1 and num_threads > 1:
            self._replace((self.lead[0], num_threads, *self.lead[2:]), num_threads, axis=1)

    def gather(self) -> bool:
        """One row for all threads, if they hold the same; gives whether that is so now."""
        if self.lead[1] == 1:
            return True
        rows = self.raw.reshape(*self.lead, self.row_bytes)
        if not bits_equal(rows, np.broadcast_to(rows[:, :1], rows.shape)):
            return False
        self.raw = np.ascontiguousarray(rows[:, :1]).reshape(-1)
        self.lead = (self.lead[0], 1, *self.lead[2:])
        if self.shadow is not None:
            self.shadow = self.shadow.first_thread()
        return True

    def _replace(self, lead: tuple[int, ...], count: int, axis: int) -> None:
        rows = self.raw.reshape(*self.lead, self.row_bytes)
        self.raw = np.repeat(rows, count, axis=axis).reshape(-1)
        self.lead = lead
        if self.shadow is not None:
            self.shadow = self.shadow.repeated(count, axis)

    @contextmanager
    def private(self, size: int) -> Iterator[None]:
        """Give each iteration of a tile-level loop its own row; what they wrote is lost afterwards."""
        raw, lead, shadow = self.raw, self.lead, self.shadow
        self.raw, self.shadow = raw.copy(), shadow.copy() if shadow else None
        rows = self.raw.reshape(*lead, self.row_bytes)
        self.raw = np.repeat(rows[..., None, :], size, axis=-2).reshape(-1)
        self.lead = (*lead, size)
        if self.shadow is not None:
            self.shadow = self.shadow.repeated(size, len(lead))
        try:
            yield
        finally:
            after = self.raw.reshape(*self.lead, self.row_bytes)
            if self.lead[: len(lead)] == lead:
                changed = (after != raw.reshape(*lead, 1, self.row_bytes)).any(axis=-2).reshape(-1)
                raw[changed] = POISON
                if shadow is not None:
                    shadow.forget(changed)
            self.raw, self.lead, self.shadow = raw, lead, shadow
