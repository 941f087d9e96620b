"""One kind of entry in a store: files named by digests, read with suspicion, shown at once.

`Blobs`, `Actions` and `Refs` give the bytes their meaning.
"""

from __future__ import annotations

import math
import os
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from dataclasses import dataclass

from tkc.cache import files
from tkc.cache.layout import digest_in_name
from tkc.cache.quarantine import Quarantine
from tkc.cache.staging import Staging
from tkc.cache.trust import Trust
from tkc.errors import StoreError
from tkc.model import Digest

STAMP_S = 3600.0
"""A use is noted when the last note is older than this: a running job writes once an hour, not at every load."""


@dataclass(frozen=True, slots=True)
class Miss:
    """Why there is nothing to load. Falsy.

    Attributes:
        reason: what was looked for and what was found; one line for each layer that was asked.
        damaged: whether something was there, and was not what its digest says.
        absent: whether there is certainly nothing under that name.
    """

    reason: str
    damaged: bool = False
    absent: bool = False

    def __bool__(self) -> bool:
        return False

    @property
    def reasons(self) -> tuple[str, ...]:
        """The reason, line by line."""
        return tuple(self.reason.splitlines())


@dataclass(frozen=True, slots=True)
class EntryStatus:
    """An entry as the file system lists it, unverified.

    Attributes:
        name: the digest that it is filed under.
        size_bytes: its length.
        disk_bytes: what it occupies.
        used_s: when it was published or last found in use, in seconds since the epoch; exact to `STAMP_S`.
    """

    name: Digest
    size_bytes: int
    disk_bytes: int
    used_s: float


@dataclass(frozen=True, slots=True)
class Content:
    """The bytes of an entry, and the status of the very file they came from."""

    data: bytes
    status: os.stat_result


class Bucket:
    """Entries of one kind. A bucket without staging and quarantine is only read."""

    def __init__(
        self,
        kind: str,
        folder: str,
        path_of: Callable[[Digest], str],
        trust: Trust,
        staging: Staging | None = None,
        quarantine: Quarantine | None = None,
    ) -> None:
        self._kind = kind
        self._folder = folder
        self._path_of = path_of
        self._trust = trust
        self._staging = staging
        self._quarantine = quarantine

    def read(self, name: Digest) -> Content | Miss:
        """The entry's bytes, unverified, or why there are none.

        Raises StoreError if the store as a whole must not be loaded from. Creates and changes nothing.
        """
        if not self._trust.require(self._folder):
            return Miss(f"{self._kind} {name.short} is not there: no folder {self._folder}", absent=True)
        try:
            content, status = files.read(self._path_of(name))
        except FileNotFoundError:
            return Miss(f"{self._kind} {name.short} is not there", absent=True)
        except OSError as error:
            return Miss(f"{self._kind} {name.short} cannot be read: {error.strerror or error}")
        if complaint := self._trust.complaint(status):
            return Miss(f"{self._kind} {name.short} is not loaded: it {complaint} ({self._path_of(name)})")
        return Content(content, status)

    def use(self, name: Digest) -> Content | Miss:
        """As `read`, and a writable store notes that the entry is in use, once in `STAMP_S` at most.

        The note is the file's time. An entry that is removed at this very moment is a miss.
        """
        content = self.read(name)
        if self._staging is None or isinstance(content, Miss) or time.time() - content.status.st_mtime < STAMP_S:
            return content
        if not files.touch(self._path_of(name)):
            return Miss(f"{self._kind} {name.short} is not there: it has just been removed", absent=True)
        return content

    def damaged(self, name: Digest, content: Content, reason: str) -> Miss:
        """Report an entry that is not what it should be; a writable store moves it to quarantine."""
        what = f"{self._kind} {name.short} is damaged: {reason}"
        if self._quarantine and (kept := self._quarantine.take(self._path_of(name), content.status, reason)):
            what += f"; moved to {kept}"
        return Miss(what, damaged=True)

    def publish(self, name: Digest, data: bytes, is_good: Callable[[], bool]) -> None:
        """Show `data` under `name`, unless what is there `is_good`. Raises OSError.

        Losing a race is no failure: the winner's entry stays if it is good, else ours takes its place (it may
        be damaged, or a network file system may not show it to us yet).
        """
        final = self._path_of(name)
        if is_good() and files.touch(final):
            return
        with self._aside(data) as aside:
            if not files.show_new(aside, final) and not is_good():
                files.show(aside, final)

    def replace(self, name: Digest, data: bytes) -> None:
        """Show `data` under `name`, whatever is there. Raises OSError."""
        with self._aside(data) as aside:
            files.show(aside, self._path_of(name))

    def remove(self, name: Digest, *, untouched_since_s: float = math.inf) -> bool:
        """Remove an entry unless it was in use since then; whether it is gone by us. Raises OSError."""
        assert self._staging is not None, "a bucket that is only read was written to"
        return files.withdraw(self._path_of(name), self._staging.private_path(), untouched_since_s=untouched_since_s)

    def statuses(self) -> Iterator[EntryStatus]:
        """Every entry, lazily, as the file system lists it. Skips those that vanish meanwhile.

        Raises StoreError for one that is there and cannot be examined: to whoever removes what nothing reaches, an
        entry that is passed over is not there.
        """
        for name, entry in self.entries():
            try:
                status = entry.stat()
            except FileNotFoundError:
                continue
            except OSError as error:
                raise _not_listed(entry.path, error) from error
            yield EntryStatus(name, status.st_size, status.st_blocks * 512, status.st_mtime)

    def strays(self) -> Iterator[str]:
        """The path of whatever lies among the entries and is none."""
        known = {entry.path for _, entry in self.entries()}
        for folder in sorted(_scan(self._folder), key=lambda entry: entry.name):
            below = _scan(folder.path) if folder.is_dir(follow_symlinks=False) else [folder]
            yield from sorted(entry.path for entry in below if entry.path not in known)

    def entries(self) -> Iterator[tuple[Digest, os.DirEntry[str]]]:
        """Every entry, lazily and unverified, one folder at a time. Skips what is no entry, or vanishes.

        Raises StoreError for a folder that is there and cannot be listed.
        """
        if not self._trust.require(self._folder):
            return
        for folder in sorted(_scan(self._folder), key=lambda entry: entry.name):
            for entry in sorted(_scan(folder.path), key=lambda entry: entry.name):
                name = digest_in_name(entry.name)
                if name is not None and entry.name.startswith(folder.name):
                    yield name, entry

    def _aside(self, data: bytes) -> AbstractContextManager[str]:
        assert self._staging is not None, "a bucket that is only read was written to"
        return self._staging.file(data)


def _scan(folder: str) -> list[os.DirEntry[str]]:
    try:
        with os.scandir(folder) as entries:
            return list(entries)
    except (FileNotFoundError, NotADirectoryError):
        return []
    except OSError as error:
        raise _not_listed(folder, error) from error


def _not_listed(path: str, error: OSError) -> StoreError:
    return StoreError(f"{path} cannot be listed: {error.strerror or error}. `tkc doctor` examines the store")
