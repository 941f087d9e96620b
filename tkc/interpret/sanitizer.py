"""Look for what a program must not do, while it runs.

Beside each memory lies a shadow: for each granule of a few bytes, whether anything wrote it; in device memory, which
block wrote it; in shared memory, which thread wrote it and read it last, and how many barriers ago.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np

from tkc.interpret.access import Place, describe_lane, first_element
from tkc.interpret.dtypes import Array
from tkc.interpret.frame import LEAD_AXES, Frame, any_active
from tkc.interpret.shadow import EVERYBODY, NOBODY, SEVERAL, WARP, Lanes, Shadow
from tkc.interpret.translate import one_line

if TYPE_CHECKING:
    from tkc.interpret.memory import Memory

_NOTHING = "nothing wrote it"
_REGISTERS = ("local", "local.var", "local.fragment")


@dataclass(frozen=True, slots=True)
class Report:
    """One fault: the first element that a statement touched in a way it must not.

    Attributes:
        kind: ``out of bounds``, ``uninitialised``, ``block conflict``, ``race``, ``misaligned``, ``overflow``,
            ``divergent barrier``, ``assertion`` or ``assumption``.
        statement: as TileLang prints it.
        buffer: its name, or empty where there is none.
        element: indices, block and thread of the first offending element.
        detail: what is wrong with it.
    """

    kind: str
    kernel: str
    statement: str
    buffer: str
    element: str
    detail: str

    def __str__(self) -> str:
        where = " ".join(part for part in (self.buffer + self.element, self.detail) if part)
        return f"{self.kernel}: {self.kind}: {where}\n    in: {self.statement}"


@dataclass
class Sanitizer:
    """Collects reports of one run: the first of each kind for each statement.

    Attributes:
        auto_barriers: whether the compiler puts barriers between the statements that all threads of a block reach.
    """

    kernel: str
    auto_barriers: bool = True
    reports: list[Report] = field(default_factory=list)
    block_barriers: int = 1
    warp_barriers: int = 1
    warp_steps: int = 1
    _deferred: list[tuple[Place, Array]] | None = None
    _seen: set[tuple[str, str, str]] = field(default_factory=set)
    _device: list[Shadow] = field(default_factory=list)

    def watch(self, memory: Memory, granule: int, *, written: bool = False) -> None:
        """Start watching a memory; `written` says whether all of it holds something already."""
        shape = (*memory.lead, -(-memory.row_bytes // granule))
        shadow = memory.shadow = Shadow(granule, np.full(shape, written))
        if memory.scope == "global":
            shadow.writer = np.full(shape, NOBODY, np.int32)
            self._device.append(shadow)
        elif memory.scope.startswith("shared"):
            shadow.writer, shadow.reader = (np.full(shape, NOBODY, np.int32) for _ in range(2))
            shadow.written_at, shadow.read_at = (np.zeros((*shape, 2), np.int32) for _ in range(2))

    def statement(self, frame: Frame) -> None:
        """A statement begins; the compiler may have put a barrier before it."""
        if self.auto_barriers and not frame.tile and threads_agree(frame):
            self.block_barriers += 1

    def barrier(self, frame: Frame, scope: str) -> None:
        """Threads wait for each other."""
        if scope == "warp":
            self.warp_barriers += 1
            self.warp_steps += 1
            return
        if not threads_agree(frame):
            self._report(frame, "divergent barrier", "", "", "only some threads of a block reach it")
        self.block_barriers += 1
        if scope == "grid":
            for shadow in self._device:
                assert shadow.writer is not None
                shadow.writer[...] = NOBODY

    def warp_step(self, frame: Frame) -> None:
        """The lanes of a warp exchange values: what they read before is read, and used."""
        self.warp_steps += 1
        if self._deferred:
            self.settle(frame, None, self._deferred)
            self._deferred.clear()

    @contextmanager
    def deferring(self) -> Iterator[list[tuple[Place, Array]]]:
        """Collect reads of registers that nothing wrote, instead of reporting them.

        A kernel may carry rubbish from register to register, as long as it never leaves them.
        """
        self._deferred = []
        try:
            yield self._deferred
        finally:
            self._deferred = None

    def settle(self, frame: Frame, target: Place | None, unwritten: list[tuple[Place, Array]]) -> None:
        """What was read without being written went into `target`: registers, or (None too) where others see it."""
        if target is None or target.memory.scope not in _REGISTERS:
            for place, lanes in unwritten:
                self._element(frame, place, "uninitialised", lanes, _NOTHING)
        elif unwritten and target.memory.shadow is not None:
            into = Lanes.of(frame, target)
            rubbish = np.logical_or.reduce(np.broadcast_arrays(into.active, *(lanes for _, lanes in unwritten))[1:])
            target.memory.shadow.written.reshape(-1)[into.granules[into.active & rubbish]] = False

    def read(self, frame: Frame, place: Place, *, atomic: bool = False) -> None:
        """Active lanes read a place."""
        shadow = place.memory.shadow
        if shadow is None or not shadow.written.size:
            return
        lanes = Lanes.of(frame, place)
        unwritten = lanes.active & ~shadow.written.reshape(-1)[lanes.granules].all(axis=-1)
        if self._deferred is None or place.memory.scope not in _REGISTERS:
            self._element(frame, place, "uninitialised", unwritten, _NOTHING)
        elif unwritten.any():
            self._deferred.append((place, unwritten))
        if shadow.reader is not None and not atomic:
            self._shared_read(frame, place, shadow, lanes)

    def write(self, frame: Frame, place: Place, value: Array) -> None:
        """Active lanes write a place; nothing is stored yet."""
        shadow = place.memory.shadow
        if shadow is None or not shadow.written.size:
            return
        lanes = Lanes.of(frame, place, value)
        if place.memory.scope == "global":
            self._device_write(frame, place, shadow, lanes)
        elif shadow.reader is not None:
            self._shared_write(frame, place, shadow, lanes, value)
        self.written(frame, place)

    def written(self, frame: Frame, place: Place) -> None:
        """Active lanes have written a place, in a way that cannot conflict."""
        if place.memory.shadow is not None and place.memory.shadow.written.size:
            lanes = Lanes.of(frame, place)
            place.memory.shadow.written.reshape(-1)[lanes.granules[lanes.active]] = True

    def outside(self, frame: Frame, place: Place, active: Array, *, writing: bool) -> None:
        """Lanes touch what lies outside a buffer."""
        dims = list(place.view.dims(frame))
        what = "write" if writing else "read"
        self._element(
            frame, place, "out of bounds", active, f"{what} outside {place.view.scope} buffer of shape {dims}"
        )

    def overflow(self, frame: Frame, exact: Callable[..., Array], left: Array, right: Array, result: Array) -> None:
        """Signed arithmetic happened: its result may not be the true one."""
        if result.dtype != np.int32:
            return
        wrong = np.asarray(exact(left.astype(np.int64), right.astype(np.int64)) != result)
        if frame.mask is not None:
            wrong = np.logical_and(wrong, frame.mask)
        if wrong.any():
            where = np.unravel_index(int(np.argmax(wrong)), wrong.shape)
            a, b = (int(np.broadcast_to(side, wrong.shape)[where]) for side in (left, right))
            detail = f"{exact.__name__} of {a} and {b} does not fit int32"
            self._report(frame, "overflow", "", _lane_text(frame, where, wrong.shape), detail)

    def expect(self, frame: Frame, held: Any, kind: str, text: str) -> None:
        """Something must hold for every active lane."""
        failed = np.logical_not(held)
        if frame.mask is not None:
            failed = np.logical_and(failed, frame.mask)
        if any_active(failed):
            array = np.asarray(failed)
            where = np.unravel_index(int(np.argmax(array)), array.shape) if array.ndim else ()
            self._report(frame, kind, "", _lane_text(frame, where, array.shape), text)

    def aligned(self, frame: Frame, place: Place, size_bytes: int) -> None:
        """An access of `size_bytes` must start at a multiple of that."""
        lanes = Lanes.of(frame, place)
        row = place.memory.row_bytes if place.memory.lead else 0
        start = np.asarray(place.flat) * place.view.element.bits // 8
        start = start % row if row else start + place.memory.address
        wrong = lanes.active & np.broadcast_to(start % size_bytes != 0, lanes.active.shape)
        self._element(frame, place, "misaligned", wrong, f"an access of {size_bytes} bytes needs a multiple of that")

    def _device_write(self, frame: Frame, place: Place, shadow: Shadow, lanes: Lanes) -> None:
        assert shadow.writer is not None
        writer = shadow.writer.reshape(-1)
        block = frame.lift(frame.block_ids.astype(np.int32).reshape(-1, 1), 0)
        block = np.broadcast_to(block, lanes.active.shape)[..., None]
        before = writer[lanes.granules]
        conflict = (before != NOBODY) & (before != block)
        chosen = lanes.granules[lanes.active]
        writer[chosen] = np.broadcast_to(block, lanes.granules.shape)[lanes.active]
        conflict |= writer[lanes.granules] != block
        self._element(
            frame,
            place,
            "block conflict",
            lanes.active & conflict.any(axis=-1),
            "two blocks write it without an atomic",
        )

    def _shared_read(self, frame: Frame, place: Place, shadow: Shadow, lanes: Lanes) -> None:
        assert shadow.writer is not None and shadow.reader is not None
        assert shadow.written_at is not None and shadow.read_at is not None
        thread = lanes.threads[..., None]
        since = shadow.written_at.reshape(-1, 2)[lanes.granules]
        writer = shadow.writer.reshape(-1)[lanes.granules]
        unordered = (writer != NOBODY) & (writer != EVERYBODY) & (writer != thread)
        unordered &= self._concurrent(writer, thread, since, self.warp_barriers, frame)
        self._element(
            frame, place, "race", lanes.active & unordered.any(axis=-1), "read while another thread may write it"
        )
        reader, read_at = shadow.reader.reshape(-1), shadow.read_at.reshape(-1, 2)
        chosen = lanes.granules[lanes.active]
        who = np.broadcast_to(thread, lanes.granules.shape)[lanes.active]
        fresh = (read_at[chosen, 0] == self.block_barriers) & (reader[chosen] != NOBODY) & (reader[chosen] != who)
        reader[chosen] = np.where(fresh, SEVERAL, who)
        reader[chosen[reader[chosen] != who]] = SEVERAL
        read_at[chosen] = (self.block_barriers, self.warp_steps)

    def _shared_write(self, frame: Frame, place: Place, shadow: Shadow, lanes: Lanes, value: Array) -> None:
        assert shadow.writer is not None and shadow.reader is not None
        assert shadow.written_at is not None and shadow.read_at is not None
        thread = lanes.threads[..., None]
        writer, written_at = shadow.writer.reshape(-1), shadow.written_at.reshape(-1, 2)
        before, read = writer[lanes.granules], shadow.reader.reshape(-1)[lanes.granules]
        wrote = (before != NOBODY) & (before != thread)
        wrote &= self._concurrent(before, thread, written_at[lanes.granules], self.warp_barriers, frame)
        seen = (read != NOBODY) & (read != thread)
        seen &= self._concurrent(read, thread, shadow.read_at.reshape(-1, 2)[lanes.granules], self.warp_steps, frame)
        chosen = lanes.granules[lanes.active]
        writer[chosen] = np.broadcast_to(thread, lanes.granules.shape)[lanes.active]
        written_at[chosen] = (self.block_barriers, self.warp_barriers)
        same = self._same_element_other_value(lanes, writer, thread, place, value)
        self._element(
            frame,
            place,
            "race",
            lanes.active & (wrote.any(axis=-1) | same),
            "two threads write it without a barrier between",
        )
        self._element(
            frame, place, "race", lanes.active & seen.any(axis=-1), "written while another thread may read it"
        )

    def _same_element_other_value(
        self, lanes: Lanes, writer: Array, thread: Array, place: Place, value: Array
    ) -> Array:
        """Lanes that this statement overwrites with the different value of another thread."""
        beaten = (writer[lanes.granules] != thread).any(axis=-1) & lanes.active
        if not beaten.any():
            return beaten
        flat = np.broadcast_to(place.flat, lanes.active.shape)
        bits = np.broadcast_to(value.view(np.dtype(f"u{value.dtype.itemsize}")), lanes.active.shape)
        final = dict(zip(flat[lanes.active].tolist(), bits[lanes.active].tolist(), strict=True))
        wanted = np.array([final[index] for index in flat[beaten].tolist()], bits.dtype)
        beaten[beaten] = wanted != bits[beaten]
        return beaten

    def _concurrent(self, other: Array, thread: Array, since: Array, warp_count: int, frame: Frame) -> Array:
        """Whether nothing ordered what `other` did at `since` before what `thread` does now."""
        block = since[..., 0] == self.block_barriers
        if frame.tile:
            return block
        same_warp = (other >= 0) & (thread >= 0) & (other // WARP == thread // WARP)
        alone = (other == SEVERAL) | (other == EVERYBODY)
        return block & ~((same_warp | alone) & (since[..., 1] != warp_count))

    def _element(self, frame: Frame, place: Place, kind: str, lanes: Array, detail: str) -> None:
        """Report the first of `lanes`, if there is any."""
        if any_active(lanes):
            self._report(frame, kind, place.view.name, first_element(frame, place, lanes), detail)

    def _report(self, frame: Frame, kind: str, buffer: str, element: str, detail: str) -> None:
        statement = one_line(frame.statement)
        if (kind, buffer, statement) not in self._seen:
            self._seen.add((kind, buffer, statement))
            self.reports.append(Report(kind, self.kernel, statement, buffer, element, detail))


def _lane_text(frame: Frame, where: Any, shape: Any) -> str:
    return describe_lane(frame, where, shape).removeprefix(", ")


def threads_agree(frame: Frame) -> bool:
    """Whether all threads of each block are active alike."""
    mask = frame.mask
    if mask is None or np.ndim(mask) < LEAD_AXES or mask.shape[1] == 1:
        return True
    return not any_active(mask.any(axis=1) & ~mask.all(axis=1))
