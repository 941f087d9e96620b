"""What the sanitizer knows of each granule of a memory, and of the lanes that touch it."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from tkc.interpret.access import Place
from tkc.interpret.dtypes import Array
from tkc.interpret.frame import LEAD_AXES, Frame

WARP = 32
NOBODY, EVERYBODY, SEVERAL = -1, -2, -3
"""Instead of a thread: none yet; all of a block alike; more than one."""


@dataclass(eq=False)
class Shadow:
    """What is known of each granule of a memory; every array has a row for each of the memory's.

    Attributes:
        granule: bytes that one entry stands for.
        written: whether anything wrote it.
        writer: the block (device memory) or thread (shared memory) that wrote it last.
        reader: the thread that read it last.
        written_at, read_at: how many barriers the block, and the warp, had passed.
    """

    granule: int
    written: Array
    writer: Array | None = None
    reader: Array | None = None
    written_at: Array | None = None
    read_at: Array | None = None

    def repeated(self, count: int, axis: int) -> Shadow:
        """For a memory that gets `count` rows for each it had."""
        rows = self.written if axis < self.written.ndim - 1 else self.written[..., None, :]
        return Shadow(self.granule, np.repeat(rows, count, axis=axis))

    def first_thread(self) -> Shadow:
        """For a memory whose threads share one row again."""
        return Shadow(self.granule, np.ascontiguousarray(self.written[:, :1]))

    def forget(self, changed: Array) -> None:
        """Nothing has written these bytes."""
        bytes_of = changed.reshape(*self.written.shape, self.granule)
        self.written &= ~bytes_of.any(axis=-1)

    def copy(self) -> Shadow:
        return Shadow(self.granule, self.written.copy())


@dataclass(frozen=True, slots=True)
class Lanes:
    """The lanes of one access, all of the same shape: which are active, who they are, what they touch.

    Attributes:
        granules: one more axis than the others, over the granules of an element.
    """

    active: Array
    threads: Array
    granules: Array

    @classmethod
    def of(cls, frame: Frame, place: Place, value: Array | None = None) -> Lanes:
        assert place.memory.shadow is not None
        parts = [np.asarray(place.flat), *(np.asarray(p) for p in (place.outside, frame.mask, value) if p is not None)]
        shape = np.broadcast_shapes((1,) * frame.rank, *(part.shape for part in parts))
        active = np.ones(shape, bool)
        if frame.mask is not None:
            active &= frame.mask
        if place.outside is not None:
            active &= ~place.outside
        granule, bits = place.memory.shadow.granule, place.view.element.bits
        first = np.broadcast_to(place.flat, shape) * bits // 8 // granule
        granules = first[..., None] + np.arange(max(bits // 8 // granule, 1))
        return cls(active, np.broadcast_to(_threads(frame, shape), shape), granules)


def _threads(frame: Frame, shape: tuple[int, ...]) -> Array:
    """Who each lane is: a thread, all threads alike, or an iteration of a tile-level loop."""
    if not frame.tile:
        if shape[1] == 1 and frame.num_threads > 1:
            return np.int32(EVERYBODY)
        return np.arange(shape[1], dtype=np.int32).reshape((1, -1) + (1,) * frame.depth)
    number: Array = np.zeros((1,) * frame.rank, np.int32)
    for axis, (size, tile) in enumerate(zip(frame.axis_sizes, frame.axis_tiles, strict=True)):
        if tile:
            along = np.arange(size, dtype=np.int32).reshape(
                (1,) * (LEAD_AXES + axis) + (size,) + (1,) * (frame.depth - axis - 1)
            )
            number = number * np.int32(size) + along
    if any(dim > 1 and number.shape[axis] > 1 and dim != number.shape[axis] for axis, dim in enumerate(shape)):
        raise AssertionError("a lane's axes do not match the open loops")
    return _fit(number, shape)


def _fit(number: Array, shape: tuple[int, ...]) -> Array:
    """Iterations that do the very same are one: take the first along axes that the access does not have."""
    return number[tuple(slice(0, 1) if shape[axis] == 1 else slice(None) for axis in range(number.ndim))]
