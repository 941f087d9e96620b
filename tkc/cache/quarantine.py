"""Damaged entries are moved aside and kept for study, each with a note that says why and when.

Only a store that may be written moves anything, and only the very file that was judged: a process that
still has it open keeps reading what it opened, and a good entry that appeared under the name meanwhile is
put back. Moving is best effort; the lookup is a miss with or without it. The newest few are kept.
"""

from __future__ import annotations

import json
import os
import time
from contextlib import suppress
from pathlib import Path

from tkc.cache import files

MAX_ENTRIES = 64
MAX_BYTES = 256 * 1024 * 1024
_NOTE = ".note.json"


class Quarantine:
    """The quarantine folder of one writable store."""

    def __init__(self, folder: str) -> None:
        self._folder = folder

    def take(self, path: str, judged: os.stat_result, reason: str) -> Path | None:
        """Move the damaged entry at `path` here and say where; None if it could not or need not be moved."""
        kept = f"{self._folder}/{time.time_ns()}-{os.urandom(4).hex()}-{Path(path).name}"
        try:
            if not os.path.samestat(Path(path).stat(), judged):
                return None
            files.show(path, kept)
            if not os.path.samestat(Path(kept).stat(), judged):
                _put_back(kept, path)
                return None
            _write_note(kept, path, reason)
            self._drop_oldest()
        except OSError:
            return None
        return Path(kept)

    def _drop_oldest(self) -> None:
        newest_first = sorted(_entries(self._folder), key=lambda path: path.name, reverse=True)
        total_bytes = 0
        for count, path in enumerate(newest_first, start=1):
            with suppress(OSError):
                total_bytes += path.stat().st_size
            if count > 1 and (count > MAX_ENTRIES or total_bytes > MAX_BYTES):
                files.discard(str(path))
                files.discard(f"{path}{_NOTE}")


def _entries(folder: str) -> list[Path]:
    return [path for path in Path(folder).iterdir() if not path.name.endswith(_NOTE)]


def _put_back(kept: str, path: str) -> None:
    files.show_new(kept, path)
    files.discard(kept)


def _write_note(kept: str, path: str, reason: str) -> None:
    note = {
        "entry": "/".join(Path(path).parts[-3:]),
        "reason": reason,
        "time": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
        "pid": os.getpid(),
    }
    files.write_new(kept + _NOTE, json.dumps(note, indent=1).encode(), 0o644)
