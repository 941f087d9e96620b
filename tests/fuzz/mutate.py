"""Breed records from records: one value inside becomes an odd one, and the rest stays good enough to be read on."""

from __future__ import annotations

import json
import random
from typing import Any

import atheris


def nested(depth: int) -> Any:
    """Lists in lists."""
    value: Any = []
    for _ in range(depth):
        value = [value]
    return value


ODD: tuple[Any, ...] = (
    *(None, True, False, 0, -1, 1, 2**31, 2**63, -(2**64), 10**400, 0.5, -0.0, float("inf"), float("nan")),
    *("", ".", "..", "../../x", "/etc/passwd", "a\0b", "\ud800", "a" * 3000, "sha256:zz", "sha256:" + "0" * 64, "cpu"),
    *([], {}, [[]], [{}], {"": None}, nested(300), nested(480), nested(900)),
    *({"$float": "0x1p0"}, {"$float": "x"}, {"$other": 1}, {"name": "x"}, ["a"], [1], [None]),
)


def mutate(data: bytes, max_size: int, seed: int) -> bytes:
    """A libFuzzer mutator: changes JSON as JSON, most of the time, and anything else byte by byte."""
    chance = random.Random(seed)
    found = _json_in(data)
    if found is None or chance.random() < 0.25:
        return bytes(atheris.Mutate(data, max_size))
    head, body = found
    for _ in range(chance.choice((1, 1, 1, 2, 3))):
        body = _changed(body, chance)
    try:
        text = json.dumps(body, sort_keys=True, indent=1) + "\n" if b"\n " in data else _compact(body)
    except (RecursionError, ValueError):
        return bytes(atheris.Mutate(data, max_size))
    return (head + text.encode())[:max_size]


def _json_in(data: bytes) -> tuple[bytes, Any] | None:
    """The bytes before a record, two at most, and the record."""
    for start in range(3):
        try:
            body = json.loads(data[start:])
        except (ValueError, RecursionError):
            continue
        if isinstance(body, dict | list):
            return data[:start], body
    return None


def _changed(value: Any, chance: random.Random) -> Any:
    """`value` with one thing in it replaced, removed, doubled or renamed."""
    if not isinstance(value, dict | list) or not value or chance.random() < 0.15:
        return chance.choice(ODD)
    keys = list(value) if isinstance(value, dict) else list(range(len(value)))
    key = chance.choice(keys)
    changed = dict(value) if isinstance(value, dict) else list(value)
    what = chance.random()
    if what < 0.08:
        del changed[key]
    elif what < 0.14 and isinstance(changed, list):
        changed.append(changed[key])
    elif what < 0.14 and isinstance(changed, dict):
        changed[chance.choice(("$x", "", "spec", "x" * 300))] = changed[key]
    else:
        changed[key] = _changed(changed[key], chance)
    return changed


def _compact(body: Any) -> str:
    return json.dumps(body, sort_keys=True, separators=(",", ":"))
