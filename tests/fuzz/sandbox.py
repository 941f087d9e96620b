"""Walls around a fuzzed parser: memory is bounded, and writing outside one folder is an error that nobody can miss."""

from __future__ import annotations

import os
import resource
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

_PATHS: Mapping[str, tuple[int, ...]] = {
    "os.mkdir": (0,),
    "os.rename": (0, 1),
    "os.link": (0, 1),
    "os.symlink": (1,),
    "os.remove": (0,),
    "os.rmdir": (0,),
    "os.chmod": (0,),
    "os.chown": (0,),
    "os.truncate": (0,),
    "os.utime": (0,),
}
"""Which arguments of an audit event are paths that are written to."""

_WRITES = os.O_WRONLY | os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_APPEND


class EscapeError(BaseException):
    """Something outside of the sandbox was about to be changed. Not an Exception: no parser may swallow it."""


class Sandbox:
    """Lets this process change files below `folder` alone, from `close` on and for good."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder.resolve()
        self._escaped: str | None = None

    def close(self) -> None:
        """Put the walls up."""
        sys.addaudithook(self._watch)

    def require_no_escape(self) -> None:
        """Raise EscapeError if there was one, also one that the program swallowed."""
        if self._escaped:
            raise EscapeError(self._escaped)

    def _watch(self, event: str, args: tuple[Any, ...]) -> None:
        if event == "open":
            path, _, flags = args
            if isinstance(path, str | bytes) and isinstance(flags, int) and flags & _WRITES:
                self._require_inside(event, path, -1)
        elif event in _PATHS:
            folder = args[-1] if isinstance(args[-1], int) else -1
            for index in _PATHS[event]:
                if not isinstance(args[index], int):
                    self._require_inside(event, args[index], folder)

    def _require_inside(self, event: str, path: Any, folder: int) -> None:
        text = os.fsdecode(path)
        if text == os.devnull:
            return
        base = Path(f"/proc/self/fd/{folder}").resolve() if folder >= 0 else Path.cwd()
        # The last part may be a link: what counts is where its name is changed, for all but open, which follows.
        whole = base / text
        real = whole.resolve() if event == "open" else whole.parent.resolve() / whole.name
        if not real.is_relative_to(self._folder) or "\0" in text:
            self._escaped = f"{event} of {text!r}"
            raise EscapeError(self._escaped)


def limit_memory(megabytes: int) -> None:
    """Let allocations beyond this fail, here and in what this process starts."""
    resource.setrlimit(resource.RLIMIT_AS, (megabytes << 20, megabytes << 20))
