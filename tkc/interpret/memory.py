"""Where buffers live: memory of the device, of a block, or of each thread, and access to it by index.

A memory is rows of bytes. Device memory is one row; block memory (shared, fragments) has one row a block;
thread memory (local) has one row a block while all its threads hold the same, and a row a thread once
they differ. Several buffers may view one memory with other shapes and types.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from enum import Enum
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np

from tkc.interpret.dtypes import E2M1, Array, ElementType
from tkc.interpret.errors import InterpretError, UnsupportedError
from tkc.interpret.frame import Evaluate, Frame, any_active, bits_equal

if TYPE_CHECKING:
    from tkc.interpret.sanitizer import Shadow

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
        return tuple(dim if type(dim) is int else uniform_int(dim(frame), self.name) for dim in self.shape)  # type: ignore[operator]

    def steps(self, frame: Frame) -> tuple[int, ...]:
        """Strides, in elements."""
        if self.strides:
            return tuple(s if type(s) is int else uniform_int(s(frame), self.name) for s in self.strides)  # type: ignore[operator]
        dims = self.dims(frame)
        return tuple(math.prod(dims[axis + 1 :]) for axis in range(len(dims)))

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
        start = self.offset if type(self.offset) is int else uniform_int(self.offset(frame), self.name)  # type: ignore[operator]
        if start:
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
    if memory.level is Level.THREAD and not frame.tile and _per_thread(frame.mask, value, *indices):
        memory.spread(frame.num_threads)
    elif memory.level is Level.BLOCK and memory.scope == "local.fragment":
        for part in (*indices, value):
            if not frame.tile:
                _block_level(frame, view, part)
    place = view.locate(frame, indices)
    outside = check_outside(frame, place, writing=True, guarded=guarded)
    if frame.sanitizer is not None:
        frame.sanitizer.write(frame, place, np.asarray(value))
    write(frame, place, value, outside)


def _block_level(frame: Frame, view: BufferView, value: Array) -> None:
    frame_value = np.asarray(value)
    if (
        frame_value.ndim > 1
        and frame_value.shape[1] > 1
        and not bits_equal(frame_value, np.broadcast_to(frame_value[:, :1], frame_value.shape))
    ):
        raise InterpretError(
            f"fragment {view.name} belongs to the block, and its threads write it with different values or indices. "
            "Use T.alloc_local for what each thread has of its own"
        )


def _per_thread(*values: Array | None) -> bool:
    return any(value is not None and np.ndim(value) > 1 and np.shape(value)[1] > 1 for value in values)


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
