"""Whether others could have put code into a store.

An artifact is code that this process will run. So nothing is loaded from a store unless its root, the
bucket's folder and the entry itself belong to this user or to root, and only the owner can write them.
A sticky folder (like /tmp) may be writable by others: they cannot replace our entries there, and their
own are refused one by one. A group that wants to share a store shares it read-only.
"""

from __future__ import annotations

import os
import pwd
import stat
from pathlib import Path

from tkc.errors import StoreError

_OTHERS_WRITE = stat.S_IWGRP | stat.S_IWOTH


class Trust:
    """Judges folders and entries of one store; remembers the folders that passed.

    With `trusted`, everything passes: for a store inside an installed package, whose code this process
    runs already.
    """

    def __init__(self, root: str, *, trusted: bool = False) -> None:
        self._root = root
        self._trusted = trusted
        self._passed: set[str] = set()

    def require(self, folder: str) -> bool:
        """Whether `folder` is there. Raises StoreError if others could write it, or it cannot be examined."""
        if folder in self._passed:
            return True
        if folder != self._root and not self.require(self._root):
            return False
        try:
            status = Path(folder).stat()
        except FileNotFoundError:
            return False
        except OSError as error:
            raise StoreError(f"store {self._root} cannot be examined: {error.strerror} ({folder})") from error
        if not stat.S_ISDIR(status.st_mode):
            raise StoreError(f"store {self._root} is unusable: {folder} is not a folder")
        if complaint := self._folder_complaint(folder, status):
            raise StoreError(complaint)
        self._passed.add(folder)
        return True

    def complaint(self, status: os.stat_result) -> str | None:
        """Why an entry with this status must not be loaded, or None."""
        if self._trusted or (
            (status.st_uid == os.geteuid() or status.st_uid == 0) and not status.st_mode & _OTHERS_WRITE
        ):
            return None
        if status.st_mode & _OTHERS_WRITE:
            return f"is writable by group or others (mode {stat.S_IMODE(status.st_mode):04o})"
        return f"belongs to {_user(status.st_uid)}, neither to this user nor to root"

    def _folder_complaint(self, folder: str, status: os.stat_result) -> str | None:
        if self._trusted:
            return None
        me = os.geteuid()
        if status.st_uid not in (me, 0):
            return (
                f"store {self._root} is not loaded from: {folder} belongs to {_user(status.st_uid)}, "
                f"this process runs as {_user(me)}. If you trust what is in it: chown -R {me} {self._root}"
            )
        if status.st_mode & _OTHERS_WRITE and not status.st_mode & stat.S_ISVTX:
            return (
                f"store {self._root} is not loaded from: {folder} is writable by group or others "
                f"(mode {stat.S_IMODE(status.st_mode):04o}, owner {_user(status.st_uid)}), "
                f"who could plant code. If you trust what is in it: chmod -R go-w {self._root}"
            )
        return None


def _user(uid: int) -> str:
    try:
        return f"uid {uid} ({pwd.getpwuid(uid).pw_name})"
    except KeyError:
        return f"uid {uid}"
