"""The miss log: what jobs asked for and did not find, ready to be built."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tkc.cache import LoggedMiss, MissLog
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
    """

    spec: str
    specialization: Mapping[str, Any]
    target: str
    host: str
    count: int
    last_s: float
    cost_s: float
    reasons: tuple[str, ...]

    @property
    def command(self) -> str:
        """The command that builds it."""
        pairs = (f"{name}={_word(value)}" for name, value in self.specialization.items())
        return " ".join(("tkc build", self.spec, *pairs, "--target", self.target, "--host", self.host))


@dataclass(frozen=True, slots=True)
class Summary:
    """What a miss log holds.

    Attributes:
        wanted: each artifact once, the most often missed first.
        damaged_lines: lines that are no record of a miss.
    """

    wanted: tuple[Wanted, ...]
    damaged_lines: int


def misses(log: MissLog) -> Summary:
    """Sum up a miss log; an absent one is empty. Raises TkcError if it is there and cannot be read."""
    try:
        found = log.read()
    except OSError as error:
        raise TkcError(f"the miss log cannot be read: {error}") from error
    merged: dict[bytes, Wanted] = {}
    odd = 0
    for miss in found:
        wanted = _wanted(miss)
        if wanted is None:
            odd += miss.count
            continue
        name = canonical([wanted.spec, wanted.specialization, wanted.target, wanted.host])
        merged[name] = _merge(merged[name], wanted) if name in merged else wanted
    ordered = sorted(merged.values(), key=lambda one: (-one.count, one.spec, one.target))
    return Summary(tuple(ordered), found.damaged_lines + odd)


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


def wanted_in(path: Path) -> Iterator[Wanted]:
    """What a miss log asks for. Raises TkcError if nothing in the file is the record of a miss."""
    summary = misses(MissLog(path))
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
        float(cost) * miss.count if isinstance(cost, int) else 0.0,
        tuple(map(str, reasons)) if isinstance(reasons, list) else (),
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
    )


def _word(value: Any) -> str:
    return str(value).lower() if isinstance(value, bool | None) else str(value)
