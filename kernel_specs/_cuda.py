"""What CUDA variants of every family ask about their target."""

from __future__ import annotations

import re

from tkc.model import Target


def has_pdl(target: Target) -> bool:
    """Whether kernels for `target` can wait for, and release, the kernels around them (sm90 and newer)."""
    number = re.match(r"sm_(\d+)", target.arch)
    return number is not None and int(number[1]) >= 90
