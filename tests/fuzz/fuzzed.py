"""What a target is."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass

Try = Callable[[bytes], None]


@dataclass(frozen=True)
class Fuzzed:
    """One parser, ready.

    Attributes:
        seeds: good inputs, from which others are bred.
        try_one: survives any bytes.
    """

    seeds: Iterable[bytes]
    try_one: Try
