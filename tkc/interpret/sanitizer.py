"""Look for what a program must not do, while it runs."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np

from tkc.interpret.dtypes import Array
from tkc.interpret.errors import InterpretError
from tkc.interpret.frame import LEAD_AXES, Frame, any_active, both
from tkc.interpret.translate import one_line

if TYPE_CHECKING:
    from tkc.interpret.memory import Memory, Place


@dataclass(frozen=True, slots=True)
class Report:
    """One fault: the first element of its kind that a statement touched.

    Attributes:
        kind: ``out of bounds``, ``uninitialised``, ``block conflict``, ``race``, ``misaligned``, ``overflow``,
            ``assertion``, ``assumption``, ``divergent barrier``.
        statement: as TileLang prints it.
        buffer: its name, or empty.
        element: indices, block and thread of the first offending element.
    """

    kind: str
    kernel: str
    statement: str
    buffer: str
    element: str
    detail: str

    def __str__(self) -> str:
        where = f" {self.buffer}{self.element}" if self.buffer else f" {self.element}" if self.element else ""
        return f"{self.kernel}: {self.kind}:{where}: {self.detail}\n    in: {self.statement}"


@dataclass(eq=False)
class Shadow:
    """What the sanitizer knows of each granule of a memory."""

    granule: int
    written: Array

    def repeated(self, count: int, axis: int) -> Shadow:
        raise NotImplementedError

    def first_thread(self) -> Shadow:
        raise NotImplementedError

    def forget(self, changed: Array) -> None:
        raise NotImplementedError

    def copy(self) -> Shadow:
        return Shadow(self.granule, self.written.copy())


@dataclass
class Sanitizer:
    """Collects reports of one run."""

    kernel: str
    auto_barriers: bool = True
    reports: list[Report] = field(default_factory=list)
    _seen: set[tuple[str, str, str]] = field(default_factory=set)

    def watch(self, memory: Memory, granule: int, *, written: bool = False) -> None:
        """Start watching a memory."""

    def read(self, frame: Frame, place: Place, *, atomic: bool = False) -> None: ...
    def write(self, frame: Frame, place: Place) -> None: ...
    def written(self, place: Place, frame: Frame) -> None: ...
    def outside(self, frame: Frame, place: Place, active: Array, *, writing: bool) -> None: ...
    def overflow(self, frame: Frame, exact: Callable[..., Array], left: Array, right: Array, result: Array) -> None: ...
    def expect(self, frame: Frame, held: Any, kind: str, text: str) -> None: ...
    def aligned(self, frame: Frame, place: Place, size_bytes: int) -> None: ...
    def barrier(self, frame: Frame, scope: str) -> None: ...
