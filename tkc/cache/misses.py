"""The miss log: what was asked for at run time and was not there. `tkc build --from-misses` reads it.

One line of JSON a miss, appended by one write, so that many processes can share the file. A line that a
dying process or a network file system tore is skipped and counted. Two files bound its size: when the
log is full it becomes the older one, and that one goes.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tkc.cache import files
from tkc.model import canonical, parse_canonical

MAX_BYTES = 4 * 1024 * 1024
MAX_LINE_BYTES = 64 * 1024
_SCHEMA = "tkc.miss/1"


@dataclass(frozen=True, slots=True)
class LoggedMiss:
    """Equal misses, counted.

    Attributes:
        entry: what was logged, as JSON values.
        count: how often.
        first_s, last_s: when, in seconds since the epoch.
    """

    entry: Mapping[str, Any]
    count: int
    first_s: float
    last_s: float


@dataclass(frozen=True, slots=True)
class Misses:
    """What a miss log holds: each miss once, in the order of its first appearance; iterable."""

    entries: tuple[LoggedMiss, ...]
    damaged_lines: int = 0

    def __iter__(self) -> Iterator[LoggedMiss]:
        return iter(self.entries)

    def __len__(self) -> int:
        return len(self.entries)


class MissLog:
    """The miss log at `path`. Touches nothing until the first `append`."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def append(self, entry: Mapping[str, Any]) -> bool:
        """Add one miss; whether that worked. Never raises OSError: a full disk must not stop a job.

        Raises TypeError for what the canonical encoding does not take.
        """
        body = canonical({"schema": _SCHEMA, "time_s": int(time.time()), "entry": entry})
        if len(body) > MAX_LINE_BYTES:
            return False
        try:
            self._make_room()
            # It begins with a line's end too: whatever a torn write left there cannot swallow this one.
            files.append(str(self.path), b"\n" + body + b"\n")
        except OSError:
            return False
        return True

    def read(self) -> Misses:
        """Every miss. An absent log is empty. Raises OSError if it is there and cannot be read."""
        found: dict[bytes, LoggedMiss] = {}
        damaged_lines = 0
        for line in self._lines():
            try:
                entry, time_s = _parse(line)
            except ValueError:
                damaged_lines += 1
                continue
            name = canonical(entry)
            seen = found.get(name)
            found[name] = (
                LoggedMiss(entry, seen.count + 1, seen.first_s, time_s)
                if seen
                else LoggedMiss(entry, 1, time_s, time_s)
            )
        return Misses(tuple(found.values()), damaged_lines)

    @property
    def _older(self) -> Path:
        return self.path.with_name(self.path.name + ".1")

    def _make_room(self) -> None:
        try:
            if self.path.stat().st_size > MAX_BYTES:
                self.path.replace(self._older)
        except FileNotFoundError:
            return

    def _lines(self) -> Iterator[bytes]:
        for path in (self._older, self.path):
            try:
                with path.open("rb") as file:
                    while raw := file.readline(MAX_LINE_BYTES + 2):  # a longer line comes in pieces that are none
                        if line := raw.strip():
                            yield line
            except FileNotFoundError:
                continue


def _parse(line: bytes) -> tuple[dict[str, Any], float]:
    body = parse_canonical(line)
    if not isinstance(body, dict) or body.get("schema") != _SCHEMA:
        raise ValueError("not a miss")
    entry, time_s = body.get("entry"), body.get("time_s")
    if not isinstance(entry, dict) or type(time_s) is not int or not 0 <= time_s < 1 << 63:
        raise ValueError("not a miss")
    return entry, float(time_s)
