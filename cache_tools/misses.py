"""The miss log: what jobs asked for and did not find, ready to be built."""

from __future__ import annotations

import shlex
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tkc.cache import LoggedMiss, Misses, MissLog, Store
from tkc.errors import TkcError
from tkc.model import canonical


@dataclass(frozen=True, slots=True)
class Wanted:
    """An artifact that was asked for.

    Attributes:
        spec, specialization, target, host: what to build.
        count: how often it was missed.
        last_s: when last, in seconds since the epoch.
        cost_s: how long callers waited for it, in all.
        reasons: of the last miss, one line a layer.
        where: machines, each with the device that asked.
    """

    spec: str
    specialization: Mapping[str, Any]
    target: str
    host: str
    count: int
    last_s: float
    cost_s: float
    reasons: tuple[str, ...]
    where: tuple[str, ...] = ()

    @property
    def command(self) -> str:
        """The command that builds it, quoted for a shell: a log may come from anywhere."""
        pairs = (f"{name}={_word(value)}" for name, value in self.specialization.items())
        return shlex.join(("tkc", "build", self.spec, *pairs, "--target", self.target, "--host", self.host))


@dataclass(frozen=True, slots=True)
class Summary:
    """What a miss log holds.

    Attributes:
        wanted: each artifact once, the most often missed first.
        damaged_lines: lines that are no record of a miss.
    """

    wanted: tuple[Wanted, ...]
    damaged_lines: int


def misses(*logs: MissLog) -> Summary:
    """Sum up miss logs, of one node or several; an absent one is empty. Raises TkcError if one cannot be read."""
    merged: dict[bytes, Wanted] = {}
    odd = 0
    for found in map(_read, logs):
        odd += found.damaged_lines
        for miss in found:
            wanted = _wanted(miss)
            if wanted is None:
                odd += miss.count
                continue
            name = canonical([wanted.spec, wanted.specialization, wanted.target, wanted.host])
            merged[name] = _merge(merged[name], wanted) if name in merged else wanted
    ordered = sorted(merged.values(), key=lambda one: (-one.count, one.spec, one.target))
    return Summary(tuple(ordered), odd)


def _read(log: MissLog) -> Misses:
    try:
        return log.read()
    except OSError as error:
        raise TkcError(f"the miss log cannot be read: {error}") from error


def clear(log: MissLog) -> int:
    """Empty a miss log; how many files went. What is appended meanwhile may go with them."""
    removed = 0
    for path in (log.path, log.path.with_name(log.path.name + ".1")):
        try:
            path.unlink()
        except FileNotFoundError:
            continue
        except OSError as error:
            raise TkcError(f"the miss log cannot be emptied: {error}") from error
        removed += 1
    return removed


def log_at(path: Path) -> MissLog:
    """The miss log that is this file, or that of the store at this folder."""
    return Store(path).miss_log if path.is_dir() else MissLog(path)


def wanted_in(path: Path) -> Iterator[Wanted]:
    """What a miss log, or that of a store, asks for. Raises TkcError if nothing in it is the record of a miss."""
    summary = misses(log_at(path))
    if summary.damaged_lines and not summary.wanted:
        raise TkcError(f"{path} is no miss log: none of its {summary.damaged_lines} lines is the record of a miss")
    return iter(summary.wanted)


def _wanted(miss: LoggedMiss) -> Wanted | None:
    entry = miss.entry
    values = entry.get("specialization")
    names = [entry.get(name) for name in ("spec", "target", "host")]
    if not isinstance(values, dict) or not all(isinstance(name, str) and name for name in names):
        return None
    if not all(value is None or isinstance(value, int | str) for value in values.values()):
        return None
    spec, target, host = map(str, names)
    cost = entry.get("cost_s")
    reasons = entry.get("reasons")
    return Wanted(
        spec,
        dict(values),
        target,
        host,
        miss.count,
        miss.last_s,
        float(cost) * miss.count if isinstance(cost, int) and abs(cost) < 1 << 63 else 0.0,
        tuple(map(str, reasons)) if isinstance(reasons, list) else (),
        (f"{entry.get('machine') or 'unknown'} ({entry.get('device') or 'unknown'})",),
    )


def _merge(one: Wanted, other: Wanted) -> Wanted:
    newest = max(one, other, key=lambda wanted: wanted.last_s)
    return Wanted(
        one.spec,
        one.specialization,
        one.target,
        one.host,
        one.count + other.count,
        newest.last_s,
        one.cost_s + other.cost_s,
        newest.reasons,
        tuple(sorted({*one.where, *other.where})),
    )


def _word(value: Any) -> str:
    return str(value).lower() if isinstance(value, bool | None) else str(value)
