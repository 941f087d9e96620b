"""What CUDA variants of every family share: questions about their target, and a loop."""

from __future__ import annotations

import re
from typing import Any

import tilelang.language as T

from tkc.model import Target


def has_pdl(target: Target) -> bool:
    """Whether kernels for `target` can wait for, and release, the kernels around them (sm90 and newer)."""
    number = re.match(r"sm_(\d+)", target.arch)
    return number is not None and int(number[1]) >= 90


def once(extent: Any) -> Any:
    """A loop that runs once or a few times: unrolled, it would be code to fetch and seldom to run."""
    return T.unroll(extent, unroll_factor=1)
