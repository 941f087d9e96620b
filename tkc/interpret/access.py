"""Access to buffers by index: locate, check, read, write."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np

from tkc.interpret.dtypes import E2M1, Array, ElementType
from tkc.interpret.errors import InterpretError
from tkc.interpret.frame import LEAD_AXES, Evaluate, Frame, any_active, bits_equal
from tkc.interpret.memory import Level, Memory


@dataclass(frozen=True, slots=True)
class Place:
    """Elements of a memory: their indices, and which lanes fall outside the buffer (None: none)."""

    memory: Memory
    view: BufferView
    flat: Array
    outside: Array | None
    indices: tuple[Array, ...]


@dataclass(frozen=True)
class BufferView:
    """A buffer: a memory seen with a shape, strides and an element type."""

    name: str
    memory: int
    scope: str
    element: ElementType
    shape: tuple[Evaluate | int, ...]
    strides: tuple[Evaluate | int, ...]
    offset: Evaluate | int

    def dims(self, frame: Frame) -> tuple[int, ...]:
        """Sizes of the dimensions."""
        return tuple(self._number(frame, dim) for dim in self.shape)

    def steps(self, frame: Frame) -> tuple[int, ...]:
        """Strides, in elements."""
        if self.strides:
            return tuple(self._number(frame, step) for step in self.strides)
        dims = self.dims(frame)
        return tuple(math.prod(dims[axis + 1 :]) for axis in range(len(dims)))

    def _number(self, frame: Frame, value: Evaluate | int) -> int:
        return value if isinstance(value, int) else uniform_int(value(frame), self.name)

    def memory_of(self, frame: Frame) -> Memory:
        """The memory, with one row for all threads where a tile-level loop needs that."""
        memory = frame.memories.get(self.memory)
        if memory is None:
            raise InterpretError(f"buffer {self.name} is used, and nothing allocated it")
        if frame.tile and memory.level is Level.THREAD and not memory.gather():
            raise InterpretError(
                f"local buffer {self.name} differs between threads, and a tile-level operation (T.Parallel, T.copy, "
                "T.reduce) uses it. Use a thread-level loop (T.serial, T.vectorized) instead"
            )
        return memory

    def locate(self, frame: Frame, indices: Sequence[Array]) -> Place:
        """The elements at `indices`. Lanes outside the buffer are pointed at element 0 and marked."""
        memory = self.memory_of(frame)
        flat = memory.row_offset(frame, self.element.bits)
        if start := self._number(frame, self.offset):
            flat = flat + np.int64(start)
        outside = None
        for index, size, step in zip(indices, self.dims(frame), self.steps(frame), strict=True):
            index, outside = _inside(np.asarray(index), size, outside)
            flat = flat + index.astype(np.int64) * step
        return Place(memory, self, flat, outside, tuple(indices))


def _inside(index: Array, size: int, outside: Array | None) -> tuple[Array, Array | None]:
    if not index.size or (index.min() >= 0 and index.max() < size):
        return index, outside
    bad = (index < 0) | (index >= size)
    return np.where(bad, index.dtype.type(0), index), bad if outside is None else outside | bad


def uniform_int(value: Any, name: str) -> int:
    """A value that is one number for all lanes. Raises InterpretError if it is not."""
    array = np.asarray(value)
    if array.size != 1 and (array != array.flat[0]).any():
        raise InterpretError(f"{name}: a size, stride or offset differs between lanes: {np.unique(array)[:4].tolist()}")
    return int(array.flat[0])


Guards: TypeAlias = "tuple[bool, ...] | bool"
"""Whether the compiler guards an access to device memory: all of it, or index by index."""


def load(frame: Frame, view: BufferView, indices: Sequence[Array], *, guarded: Guards = True) -> Array:
    """Read one element a lane. Device memory outside a buffer reads as 0 where the compiler guards it."""
    place = view.locate(frame, indices)
    outside = check_outside(frame, place, writing=False, guarded=guarded)
    if frame.sanitizer is not None:
        frame.sanitizer.read(frame, place)
    value = read(place)
    if outside is not None:
        value = np.where(outside, np.zeros((), _bits_of(view)), pack(value)).view(view.element.numpy)
    return value


def store(frame: Frame, view: BufferView, indices: Sequence[Array], value: Array, *, guarded: Guards = True) -> None:
    """Write one element a lane; the last lane wins. Device memory outside a buffer is not written."""
    memory = view.memory_of(frame)
    one_row = memory.level is Level.THREAD and memory.lead[1] == 1
    if (one_row or memory.scope == "local.fragment") and not frame.tile:
        differs = any(_differs_between_threads(part) for part in (frame.mask, value, *indices))
        if differs and one_row:
            memory.spread(frame.num_threads)
        elif differs:
            raise InterpretError(
                f"fragment {view.name} belongs to the block, and its threads write it differently. "
                "Use T.alloc_local for what each thread has of its own"
            )
    place = view.locate(frame, indices)
    outside = check_outside(frame, place, writing=True, guarded=guarded)
    if frame.sanitizer is not None:
        frame.sanitizer.write(frame, place, np.asarray(value))
    write(frame, place, value, outside)


def _differs_between_threads(value: Array | None) -> bool:
    if value is None or np.ndim(value) < LEAD_AXES or np.shape(value)[1] == 1:
        return False
    array = np.asarray(value)
    return not bits_equal(array, np.broadcast_to(array[:, :1], array.shape))


def check_outside(frame: Frame, place: Place, *, writing: bool, guarded: Guards = True) -> Array | None:
    """Lanes outside the buffer. An active one is a fault, unless the compiler guards the access."""
    if place.outside is None:
        return None
    active = _unguarded(frame, place, guarded)
    if active is not None and frame.mask is not None:
        active = np.logical_and(active, frame.mask)
    if active is None or not any_active(active):
        return place.outside
    if frame.sanitizer is not None:
        frame.sanitizer.outside(frame, place, active, writing=writing)
        return place.outside
    raise InterpretError(
        f"{'write' if writing else 'read'} outside {place.view.scope} buffer "
        f"{place.view.name}{list(place.view.dims(frame))} at {first_element(frame, place, active)}"
    )


def _unguarded(frame: Frame, place: Place, guarded: Guards) -> Array | None:
    """Lanes that are outside by an index that nothing guards."""
    if place.memory.level is not Level.DEVICE or not frame.guards or guarded is False:
        return place.outside
    if guarded is True or all(guarded):
        return None
    bare = [
        (index < 0) | (index >= size)
        for index, size, guard in zip(place.indices, place.view.dims(frame), guarded, strict=True)
        if not guard
    ]
    return np.asarray(np.logical_or.reduce(np.broadcast_arrays(*bare), axis=0))


def first_element(frame: Frame, place: Place, lanes: Array) -> str:
    """The first of `lanes`: its indices, block and thread, for messages."""
    shape = np.broadcast_shapes(np.shape(lanes), *(np.shape(index) for index in place.indices))
    where = np.unravel_index(int(np.argmax(np.broadcast_to(lanes, shape))), shape) if shape else ()
    indices = [int(np.broadcast_to(index, shape)[where]) for index in place.indices]
    return f"{indices}{describe_lane(frame, where, shape)}"


def describe_lane(frame: Frame, where: Sequence[Any], shape: Sequence[int]) -> str:
    """Block and thread of a lane, where they are known."""
    if len(where) < 2:
        return ""
    block = int(frame.block_ids[where[0]]) if shape[0] > 1 or frame.num_blocks == 1 else None
    text = "" if block is None else f", block {block}"
    return text + (f", thread {int(where[1])}" if shape[1] > 1 else "")


def read(place: Place) -> Array:
    """The elements at a place, whatever lanes are active."""
    kind = place.view.element.numpy
    if kind == E2M1:
        return _read_nibbles(place)
    elements = place.memory.elements(kind)
    if not elements.size:
        return np.zeros(np.shape(place.flat), kind)
    return elements[place.flat].view(kind)


def write(frame: Frame, place: Place, value: Array, outside: Array | None) -> None:
    """Put values at a place, for the lanes that are active and not outside."""
    flat, bits = selected(frame, place.flat, outside, pack(value))
    if place.view.element.numpy == E2M1:
        _write_nibbles(place.memory, flat, bits)
    elif np.size(flat):
        place.memory.elements(place.view.element.numpy)[flat] = bits


def selected(frame: Frame, flat: Array, outside: Array | None, *values: Array) -> tuple[Array, ...]:
    """The active lanes of an index and of values that go with it, in order."""
    active = frame.mask if outside is None else ~outside if frame.mask is None else np.logical_and(frame.mask, ~outside)
    shape = np.broadcast_shapes(
        np.shape(flat), *(np.shape(v) for v in values), np.shape(active) if active is not None else ()
    )
    spread = tuple(np.broadcast_to(part, shape) for part in (flat, *values))
    if active is None:
        return spread
    chosen = np.broadcast_to(active, shape)
    return tuple(part[chosen] for part in spread)


def pack(value: Array) -> Array:
    """Values as the bits that memory holds."""
    array = np.asarray(value)
    return array.view(np.dtype(f"u{array.dtype.itemsize}"))


def _bits_of(view: BufferView) -> np.dtype[Any]:
    return np.dtype(f"u{view.element.numpy.itemsize}")


def _read_nibbles(place: Place) -> Array:
    flat = np.asarray(place.flat)
    pair = place.memory.raw[flat >> 1]
    return np.where(flat & 1, pair >> np.uint8(4), pair & np.uint8(15)).astype(np.uint8).view(E2M1)


def _write_nibbles(memory: Memory, flat: Array, bits: Array) -> None:
    flat, bits = np.asarray(flat).reshape(-1), np.asarray(bits).reshape(-1) & np.uint8(15)
    for half, keep in ((0, 0xF0), (1, 0x0F)):
        chosen = (flat & 1) == half
        where = flat[chosen] >> 1
        memory.raw[where] = (memory.raw[where] & np.uint8(keep)) | (bits[chosen] << np.uint8(4 * half))
