"""Locks that save double work, and nothing else: correctness never depends on one.

A lock is `flock` on a file of its own. The file is never removed (a process that waits on a removed file
waits for nobody) and holds a record of its owner, so that whoever waits can say for whom and since when.
Where locks do not work (some network file systems), where the wait gets long, or where the owner has died
without its lock being freed, the waiter goes on without: it compiles privately, and the store takes
whichever result comes first.

The filelock package is not used: its releases differ in whether a lock file is removed on release, and
it takes other measures of its own where flock is missing.
"""

from __future__ import annotations

import errno
import fcntl
import os
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import TypeAlias

from tkc.cache import files
from tkc.cache.owner import Owner


@dataclass(frozen=True, slots=True)
class Waiting:
    """What a waiter is told; readable by ``str()``.

    Attributes:
        owner: who holds the lock; None if the record cannot be read.
        waited_s: for how long this process has waited.
    """

    owner: Owner | None
    waited_s: float

    def __str__(self) -> str:
        return f"{self.owner or 'another process'} (waited {self.waited_s:.0f} s)"


OnWait: TypeAlias = Callable[[Waiting], object]
"""Called at once when a wait begins, then every `REPORT_S` seconds."""

POLL_S = 0.05
REPORT_S = 10.0
TIMEOUT_S = 600.0
GONE_S = 3.0
"""How long the owner must have been dead before its lock is disregarded: its successor may be signing."""

_HELD_BY_ANOTHER = frozenset({errno.EAGAIN, errno.EACCES})


@contextmanager
def hold(path: str, *, on_wait: OnWait | None = None, timeout_s: float = TIMEOUT_S) -> Iterator[bool]:
    """Hold the lock at `path` during the block; yields whether it is really held.

    Never fails and never waits longer than `timeout_s`: False means "go on without". Not reentrant. What the
    block raises passes through.
    """
    descriptor = _open(path)
    if descriptor is None:
        yield False
        return
    try:
        held = _acquire(descriptor, on_wait, timeout_s)
        if held:
            _sign(descriptor, Owner.current().to_bytes())
        try:
            yield held
        finally:
            if held:
                _sign(descriptor, b"")
                # Explicitly: a child forked meanwhile shares the descriptor; closing ours would not free it.
                with suppress(OSError):
                    fcntl.flock(descriptor, fcntl.LOCK_UN)
    finally:
        with suppress(OSError):
            os.close(descriptor)


def _open(path: str) -> int | None:
    with suppress(OSError):
        return files.within_folder(path, lambda: os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644))
    return None


def _acquire(descriptor: int, on_wait: OnWait | None, timeout_s: float) -> bool:
    started_s = alive_s = time.monotonic()
    reports = 0
    while (locked := _try_lock(descriptor)) is False:
        now_s = time.monotonic()
        owner = _owner(descriptor)
        if owner is None or not owner.is_gone():
            alive_s = now_s
        if now_s - started_s >= timeout_s or now_s - alive_s >= GONE_S:
            return False
        if on_wait and now_s - started_s >= reports * REPORT_S:
            on_wait(Waiting(owner, now_s - started_s))
            reports += 1
        time.sleep(POLL_S)
    return bool(locked)


def _try_lock(descriptor: int) -> bool | None:
    """True: locked. False: another holds it. None: locks do not work here."""
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        return False if error.errno in _HELD_BY_ANOTHER else None
    return True


def _sign(descriptor: int, record: bytes) -> None:
    with suppress(OSError):
        os.ftruncate(descriptor, 0)
        os.pwrite(descriptor, record, 0)


def _owner(descriptor: int) -> Owner | None:
    with suppress(OSError):
        return Owner.from_bytes(os.pread(descriptor, 4096, 0))
    return None
