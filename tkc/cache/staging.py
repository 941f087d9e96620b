"""Private places to write in, on the store's own file system, until one rename or link shows the result.

A name here says which process it belongs to, so that a later build can remove what killed ones left.
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from tkc.cache import files
from tkc.cache.owner import Owner

GONE_AGE_S = 60.0
"""What a dead process of this machine left is removed after this long."""
ANY_AGE_S = 7 * 24 * 3600.0
"""What cannot be attributed, or belongs to another machine, is removed after this long."""


class Staging:
    """The staging folder of one writable store."""

    def __init__(self, folder: str) -> None:
        self._folder = folder

    @contextmanager
    def folder(self) -> Iterator[Path]:
        """Give a private empty folder, and remove it afterwards. Raises OSError if there can be none."""
        path = self.private_path()
        files.make_folder(path)
        try:
            yield Path(path)
        finally:
            files.discard(path)

    @contextmanager
    def file(self, content: bytes) -> Iterator[str]:
        """Give the path of a private, durable file with `content`, and remove that name afterwards."""
        path = self.private_path()
        files.write_new(path, content)
        try:
            yield path
        finally:
            files.discard(path)

    def clean(self) -> int:
        """Remove what processes that no longer run left behind; how many. Best effort."""
        removed = 0
        with suppress(OSError), os.scandir(self._folder) as entries:
            for entry in entries:
                with suppress(OSError):
                    if _is_leftover(entry.name, time.time() - entry.stat(follow_symlinks=False).st_mtime):
                        files.discard(entry.path)
                        removed += 1
        return removed

    def private_path(self) -> str:
        """A path that nobody else uses; nothing is there yet."""
        me = Owner.current()
        return f"{self._folder}/{me.host}~{me.namespace}~{me.pid}~{os.urandom(8).hex()}"


def _is_leftover(name: str, age_s: float) -> bool:
    return age_s > ANY_AGE_S or (age_s > GONE_AGE_S and _owner_is_gone(name))


def _owner_is_gone(name: str) -> bool:
    host, *numbers = name.split("~")
    if len(numbers) != 3 or not (numbers[0].isdecimal() and numbers[1].isdecimal()):
        return False
    return Owner(host, int(numbers[0]), int(numbers[1]), 0.0).is_gone()
