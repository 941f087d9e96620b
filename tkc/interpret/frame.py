"""The state of a run: which lanes are active, what variables hold, where buffers live.

Every value is an array over the axes ``[blocks, threads, loop axes…]``, each of full size or 1, or a scalar
where nothing varies. Thread-level code has all its threads on the second axis. A tile-level loop
(``T.Parallel``) belongs to the block: its iterations are an axis of their own, and its threads are one.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np

from tkc.interpret.dtypes import Array
from tkc.interpret.errors import InterpretError

if TYPE_CHECKING:
    from tkc.interpret.memory import Memory
    from tkc.interpret.sanitizer import Sanitizer

Evaluate: TypeAlias = "Callable[[Frame], Any]"
"""A translated expression."""

Execute: TypeAlias = "Callable[[Frame], None]"
"""A translated statement."""

LEAD_AXES = 2
MAX_STEPS = 1 << 22


@dataclass(frozen=True, slots=True)
class ThreadIndex:
    """Stands for the thread's index along x, y or z (0, 1, 2), in a variable."""

    dim: int


@dataclass
class Frame:
    """One chunk of blocks, part way through the program.

    Attributes:
        block_ids: index of each block of the chunk in the whole grid.
        thread_shape: threads of a block along x, y and z.
        guards: whether accesses to device memory outside a buffer are guarded.
        mask: the active lanes, or None where all are.
        depth: loop axes that are open.
        tile: whether a tile-level loop is open; there the thread axis is one.
        variables: by slot: the value, and the depth it was made at.
        memories: by the buffer's data variable.
        statement: the statement being run, for messages.
        generator: the random number generator, once initialised.
    """

    block_ids: Array
    thread_shape: tuple[int, int, int]
    sanitizer: Sanitizer | None
    guards: bool = True
    mask: Array | None = None
    depth: int = 0
    tile: bool = False
    variables: dict[int, tuple[Any, int]] = field(default_factory=dict)
    memories: dict[int, Memory] = field(default_factory=dict)
    exited: Array | None = None
    broken: list[Array | None] = field(default_factory=list)
    statement: Any = None
    generator: Any = None
    axis_sizes: list[int] = field(default_factory=list)
    axis_tiles: list[bool] = field(default_factory=list)

    @property
    def num_blocks(self) -> int:
        return len(self.block_ids)

    @property
    def num_threads(self) -> int:
        x, y, z = self.thread_shape
        return x * y * z

    @property
    def rank(self) -> int:
        return LEAD_AXES + self.depth

    def thread_index(self, dim: int) -> Array:
        """The thread's index along x, y or z (0, 1, 2)."""
        x, y, _ = self.thread_shape
        flat = np.arange(self.num_threads, dtype=np.int32)
        index = (flat % x, flat // x % y, flat // (x * y))[dim]
        return self.lift(index.reshape(1, -1), 0)

    def lift(self, value: Any, depth: int) -> Any:
        """A value made at `depth`, as an array of this depth."""
        if depth == self.depth or not getattr(value, "ndim", 0):
            return value
        if depth > self.depth:
            return drop_axes(value, self.rank)
        return value.reshape(value.shape + (1,) * (self.depth - depth))

    def set(self, slot: int, value: Any) -> None:
        """Bind a variable."""
        self.variables[slot] = (value, self.depth)

    def get(self, slot: int, name: str) -> Any:
        """What a variable holds."""
        value, depth = self.variables[slot]
        if isinstance(value, ThreadIndex):
            value, depth = self.thread_index(value.dim), self.depth
        value = self.lift(value, depth) if not isinstance(value, tuple) else tuple(self.lift(v, depth) for v in value)
        return self.one_thread(value, f"variable {name}") if self.tile else value

    def one_thread(self, value: Any, what: str) -> Any:
        """A value inside a tile-level loop, where it must be the same for all threads."""
        if isinstance(value, tuple):
            return tuple(self.one_thread(item, what) for item in value)
        if not getattr(value, "ndim", 0) or value.shape[1] == 1:
            return value
        first = value[:, :1]
        if not (bits_equal(first, value)):
            raise InterpretError(
                f"{what} differs between threads, and a tile-level operation (T.Parallel, T.copy, T.reduce) uses it. "
                "Tile-level work belongs to the whole block: use a thread-level loop (T.serial, T.vectorized) instead"
            )
        return first

    def full(self, value: Any) -> Array:
        """`value` with blocks and threads spread out to their full size."""
        array = np.asarray(value)
        if array.ndim == 0:
            array = array.reshape((1,) * self.rank)
        return np.broadcast_to(array, (self.num_blocks, self.num_threads, *array.shape[LEAD_AXES:]))

    @contextmanager
    def masked(self, condition: Array) -> Iterator[bool]:
        """Narrow the mask to `condition`; gives whether any lane is left."""
        outer = self.mask
        self.mask = both(outer, condition)
        try:
            yield any_active(self.mask)
        finally:
            self.mask = outer
            self.apply_exits()

    def apply_exits(self) -> None:
        """Take lanes out of the mask that returned, or left the innermost loop."""
        for gone in (self.exited, self.broken[-1] if self.broken else None):
            if gone is not None:
                value = self.lift(gone, gone.ndim - LEAD_AXES)
                self.mask = both(self.mask, ~value)

    @contextmanager
    def axis(self, size: int, *, tile: bool) -> Iterator[Array]:
        """Open a loop axis of `size`; gives the iteration numbers along it."""
        mask, was_tile = self.mask, self.tile
        if mask is not None and np.ndim(mask):
            self.mask = mask.any(axis=1, keepdims=True)[..., None] if tile else mask[..., None]
        self.depth += 1
        self.axis_sizes.append(size)
        self.axis_tiles.append(tile)
        self.tile = was_tile or tile
        try:
            yield np.arange(size, dtype=np.int64).reshape((1,) * (self.rank - 1) + (size,))
        finally:
            self.depth -= 1
            self.axis_sizes.pop()
            self.axis_tiles.pop()
            self.mask, self.tile = mask, was_tile

    def step(self, count: int) -> None:
        """Bound what a loop may do: a loop that waits for another block never ends here."""
        if count > MAX_STEPS:
            raise InterpretError(f"a loop ran {MAX_STEPS} times without ending; it may wait for another block")


def both(mask: Array | None, condition: Array | None) -> Array | None:
    """Lanes that are in both masks; None is all."""
    if mask is None:
        return condition
    return mask if condition is None else np.logical_and(mask, condition)


def any_active(mask: Array | None) -> bool:
    """Whether any lane is left."""
    return mask is None or bool(np.any(mask))


def drop_axes(value: Array, rank: int) -> Array:
    """A value from a deeper loop, whose axes must not matter any more."""
    return value[(Ellipsis, *((0,) * (value.ndim - rank)))]


def bits_equal(a: Array, b: Array) -> bool:
    """Whether two arrays hold the same bits."""
    kind = np.dtype(f"u{a.dtype.itemsize}")
    a, b = np.ascontiguousarray(a), np.ascontiguousarray(b)
    return bool(np.all(a.view(kind) == b.view(kind)))
