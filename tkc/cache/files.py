"""Every system call that changes a store, and the one that reads an entry. Paths are strings.

New content is written aside, made durable, and then shown by one link or rename: whoever looks sees an
entry whole or not at all, whenever the writer dies. Functions raise OSError; `writing` turns what a
writer cannot cure into a StoreError that says what to do.
"""

# System calls, not pathlib: a lookup makes as few as it can, and tests stop a writer before any one of them.
# ruff: noqa: PTH102, PTH104, PTH108, PTH116, PTH120

from __future__ import annotations

import errno
import os
import shutil
import stat
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import TypeVar

from tkc.errors import StoreError, StoreFullError, StoreReadOnlyError

# No group or other write bit, whatever the umask: an entry that others could change is not loaded.
ENTRY_MODE = 0o444
FOLDER_MODE = 0o755

T = TypeVar("T")

_FULL = frozenset({errno.ENOSPC, errno.EDQUOT})
_READ_ONLY = frozenset({errno.EROFS, errno.EACCES, errno.EPERM})
_NO_LINKS = frozenset({errno.EPERM, errno.EACCES, errno.EMLINK, errno.ENOSYS, errno.EOPNOTSUPP, errno.EXDEV})
_NO_SYNC = frozenset({errno.EINVAL, errno.ENOSYS, errno.EOPNOTSUPP})


def read(path: str) -> tuple[bytes, os.stat_result]:
    """Content and status of a regular file, both of one descriptor: a rename in between cannot mix two.

    A handle that a network file system calls stale is opened once more. Raises OSError.
    """
    try:
        return _read(path)
    except OSError as error:
        if error.errno != errno.ESTALE:
            raise
    return _read(path)


def _read(path: str) -> tuple[bytes, os.stat_result]:
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
    try:
        status = os.fstat(descriptor)
        if not stat.S_ISREG(status.st_mode):
            raise OSError(errno.EINVAL, "not a regular file", path)
        content = os.read(descriptor, status.st_size + 1)
        while 0 < len(content) < status.st_size and (more := os.read(descriptor, status.st_size - len(content))):
            content += more
        return content, status
    finally:
        os.close(descriptor)


def write_new(path: str, content: bytes, mode: int = ENTRY_MODE) -> None:
    """Write a file that is not there yet, durably. Leaves nothing behind if it fails."""
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC
    created = within_folder(path, lambda: os.open(path, flags, mode))
    try:
        with _closing(created) as descriptor:
            _write_all(descriptor, content)
            _sync(descriptor)
    except BaseException:
        discard(path)
        raise


def append(path: str, content: bytes) -> None:
    """Add `content` to the end of a file by one write, as whole as the file system makes it."""
    flags = os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC
    with _closing(within_folder(path, lambda: os.open(path, flags, 0o644))) as descriptor:
        os.write(descriptor, content)


def show_new(aside: str, final: str) -> bool:
    """Make the file `aside` visible as `final`; False if something is there already, which stays.

    The name `aside` may remain. A link never replaces what another process may have open or mapped; where
    the file system has no links, a rename has to do.
    """
    try:
        within_folder(final, lambda: os.link(aside, final))
    except FileExistsError:
        return False
    except OSError as error:
        if error.errno not in _NO_LINKS:
            raise
        if os.path.lexists(final):
            return False
        within_folder(final, lambda: os.rename(aside, final))
    sync_folder(os.path.dirname(final))
    return True


def show(aside: str, final: str) -> None:
    """Make the file `aside` visible as `final`, in place of what may be there, by one rename."""
    within_folder(final, lambda: os.rename(aside, final))
    sync_folder(os.path.dirname(final))


def touch(path: str) -> bool:
    """Say that an entry is in use, for whoever removes old ones; False if it has just been removed.

    Otherwise best effort: an entry of another user, or on a read-only file system, keeps its time.
    """
    try:
        os.utime(path)
    except FileNotFoundError:
        return False
    except OSError:
        return True
    return True


def withdraw(final: str, aside: str, *, untouched_since_s: float) -> bool:
    """Remove the entry at `final` by way of `aside`, unless it was touched since then; whether it is gone by us.

    Whoever touches it afterwards is told that it is gone (see `touch`); who touched it before keeps it: it is
    judged once more where nobody can reach it, and put back if it turns out to be in use. Processes that have it
    open keep reading it.
    """
    try:
        if os.stat(final).st_mtime > untouched_since_s:
            return False
        within_folder(aside, lambda: os.rename(final, aside))
        if os.stat(aside).st_mtime > untouched_since_s:
            show_new(aside, final)
            return False
    except FileNotFoundError:
        return False
    finally:
        discard(aside)
    return True


def make_folder(path: str) -> None:
    """Make a folder and those above it, durably; nothing happens if it is there."""
    parent = os.path.dirname(path)
    try:
        os.mkdir(path, FOLDER_MODE)
    except FileExistsError:
        return
    except FileNotFoundError:
        if parent == path:
            raise
        make_folder(parent)
        with suppress(FileExistsError):
            os.mkdir(path, FOLDER_MODE)
    sync_folder(parent)


def within_folder(path: str, act: Callable[[], T]) -> T:
    """Do `act`, and once more after making the folder of `path`, if that is what was missing."""
    try:
        return act()
    except FileNotFoundError:
        make_folder(os.path.dirname(path))
    return act()


def discard(path: str) -> None:
    """Remove a private file or folder. Best effort: cleaning up is never what fails."""
    try:
        os.unlink(path)
    except FileNotFoundError:
        return
    except OSError:
        with suppress(OSError):  # what fails between two of its steps, rmtree raises all the same
            shutil.rmtree(path, ignore_errors=True)


def sync_folder(path: str) -> None:
    """Make the names in a folder durable, where the file system can. Best effort.

    Entries verify themselves, so a name lost in a power failure costs a rebuild, never a wrong result.
    """
    flags = os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC
    with suppress(OSError), _closing(os.open(path, flags)) as descriptor:
        os.fsync(descriptor)


@contextmanager
def writing(root: str) -> Iterator[None]:
    """Turn what a write below `root` cannot cure into StoreFullError, StoreReadOnlyError or StoreError."""
    try:
        yield
    except OSError as error:
        raise _store_error(error, root) from error


def _store_error(error: OSError, root: str) -> StoreError:
    what = f"store {root}: {error.strerror or error}" + (f" ({error.filename})" if error.filename else "")
    if error.errno in _FULL:
        return StoreFullError(f"{what}. Make room there, or set TKC_CACHE_DIR to a folder on another one")
    if error.errno in _READ_ONLY:
        return StoreReadOnlyError(
            f"{what}. Nothing can be written here; set TKC_CACHE_DIR to a folder that you may write"
        )
    return StoreError(f"{what}. `tkc doctor` examines the store")


def _write_all(descriptor: int, content: bytes) -> None:
    rest = memoryview(content)
    while rest:
        rest = rest[os.write(descriptor, rest) :]


def _sync(descriptor: int) -> None:
    try:
        os.fsync(descriptor)
    except OSError as error:
        if error.errno not in _NO_SYNC:
            raise


@contextmanager
def _closing(descriptor: int) -> Iterator[int]:
    try:
        yield descriptor
    finally:
        os.close(descriptor)
