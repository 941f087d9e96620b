"""Stamps of installed tools: ``stamps-v1/<digest of a listing>`` holds the digest of what is listed.

`tkc.compiler.trees` writes them. One that is gone costs the next build the time to read a tool again, nothing else.
"""

from __future__ import annotations

import os
from collections.abc import Collection, Iterator
from contextlib import suppress
from pathlib import Path

from tkc.cache.layout import digest_in_name
from tkc.model import Digest

_ASIDE = ".stamp-"


def stale_stamps(folder: str, tools: Collection[Digest], *, unused_since_s: float) -> Iterator[Path]:
    """Stamps that stand for none of `tools`, or for nothing, and are older than that. Skips what cannot be read."""
    with suppress(OSError), os.scandir(folder) as entries:
        for entry in entries:
            with suppress(OSError):
                if _is_stamp(entry) and entry.stat().st_mtime <= unused_since_s and _digest(entry) not in tools:
                    yield Path(entry.path)


def _is_stamp(entry: os.DirEntry[str]) -> bool:
    """Whether it is a stamp, or what a killed process left of one; builds keep other things there too."""
    named = digest_in_name(entry.name) is not None or entry.name.startswith(_ASIDE)
    return named and entry.is_file(follow_symlinks=False)


def _digest(entry: os.DirEntry[str]) -> Digest | None:
    try:
        return Digest.parse(Path(entry.path).read_text())
    except ValueError:
        return None
