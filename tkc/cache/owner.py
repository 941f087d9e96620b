"""Which process a lock or a staging folder belongs to, and whether that process still runs."""

from __future__ import annotations

import json
import os
import time
from dataclasses import asdict, dataclass
from functools import cache
from pathlib import Path
from typing import Self


@dataclass(frozen=True, slots=True)
class Owner:
    """A process that holds something.

    Attributes:
        host: name of the machine or container.
        namespace: of process ids; the same pid means another process in another one.
        pid: of the process.
        since_s: when it took hold, in seconds since the epoch.
    """

    host: str
    namespace: int
    pid: int
    since_s: float

    @classmethod
    def current(cls) -> Self:
        """This process, from now on."""
        return cls(os.uname().nodename, _pid_namespace(), os.getpid(), time.time())

    @classmethod
    def from_bytes(cls, data: bytes) -> Self | None:
        """Read what `to_bytes` wrote; None for anything else."""
        try:
            record = json.loads(data)
            return cls(str(record["host"]), int(record["namespace"]), int(record["pid"]), float(record["since_s"]))
        except (ValueError, KeyError, TypeError, RecursionError):
            return None

    def to_bytes(self) -> bytes:
        return json.dumps(asdict(self)).encode()

    def is_gone(self) -> bool:
        """Whether the process certainly runs no longer. False when that cannot be known from here."""
        if (self.host, self.namespace) != (os.uname().nodename, _pid_namespace()):
            return False
        try:
            os.kill(self.pid, 0)
        except ProcessLookupError:
            return True
        except (PermissionError, OverflowError):
            return False
        return False

    def __str__(self) -> str:
        clock = time.strftime("%H:%M:%S", time.localtime(self.since_s))
        return f"process {self.pid} on {self.host}, since {clock}"


@cache
def _pid_namespace() -> int:
    try:
        return Path("/proc/self/ns/pid").stat().st_ino
    except OSError:
        return 0
