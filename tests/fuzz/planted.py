"""Parsers with the faults that fuzzing must not miss; `test_fuzz` proves that it does not."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path

from tests.fuzz.fuzzed import Fuzzed


def crash(folder: Path, _wheel: Path) -> Fuzzed:
    """Raises what it must not on what random bytes hardly ever begin with: found by coverage, or not at all."""

    def try_one(data: bytes) -> None:
        if data[:1] == b"t" and data[1:2] == b"k" and data[2:3] == b"c":
            raise KeyError(data)

    return Fuzzed([b"x"], try_one)


def escape(folder: Path, _wheel: Path) -> Fuzzed:
    """Writes beside its folder, and hides it."""

    def try_one(data: bytes) -> None:
        with suppress(BaseException):
            (folder / ".." / ".." / "escaped").write_bytes(data)

    return Fuzzed([b"x"], try_one)


def hog(folder: Path, _wheel: Path) -> Fuzzed:
    """Believes a length that is announced."""
    return Fuzzed([b"x"], lambda data: void(bytes(len(data) * 2**32)))


def hang(folder: Path, _wheel: Path) -> Fuzzed:
    """Never comes back."""
    return Fuzzed([b"x"], lambda data: time.sleep(60) if data else None)


def void(_value: object) -> None:
    """Only whether it was made is of interest."""


TARGETS: Mapping[str, Callable[[Path, Path], Fuzzed]] = {one.__name__: one for one in (crash, escape, hog, hang)}
