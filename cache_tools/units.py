"""Sizes and ages as people write them."""

from __future__ import annotations

import re

from tkc.errors import TkcError

_SIZES = {"B": 1, "KB": 10**3, "MB": 10**6, "GB": 10**9, "TB": 10**12, "KIB": 2**10, "MIB": 2**20, "GIB": 2**30}
_AGES = {"s": 1, "m": 60, "h": 3600, "d": 24 * 3600, "w": 7 * 24 * 3600}


def parse_size(text: str) -> int:
    """Read bytes such as ``2GB``, ``500 MB`` or ``1.5GiB``. Raises TkcError for anything else."""
    match = re.fullmatch(r"(\d+(?:\.\d+)?)\s*([KMGT]?i?B)?", text.strip(), re.IGNORECASE | re.ASCII)
    unit = (match[2] or "B").upper() if match else ""
    if match is None or unit not in _SIZES:
        raise TkcError(f"{text!r} is no size; expected a number and B, KB, MB, GB or TB, such as 2GB")
    return int(float(match[1]) * _SIZES[unit])


def parse_age(text: str) -> float:
    """Read seconds such as ``30d``, ``12h`` or ``90s``. Raises TkcError for anything else."""
    match = re.fullmatch(r"(\d+(?:\.\d+)?)\s*([smhdw])", text.strip(), re.ASCII)
    if match is None:
        raise TkcError(f"{text!r} is no age; expected a number and s, m, h, d or w, such as 30d")
    return float(match[1]) * _AGES[match[2]]


def age_text(age_s: float) -> str:
    """An age for people, in its largest unit: ``3 d``, ``40 min``."""
    for size, name in ((24 * 3600, "d"), (3600, "h"), (60, "min")):
        if age_s >= size:
            return f"{age_s / size:.0f} {name}"
    return f"{max(age_s, 0):.0f} s"
