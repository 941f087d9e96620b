"""A wheel, or a folder with a store, as a store that can be read."""

from __future__ import annotations

import errno
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

from tkc.cache import Store
from tkc.errors import TkcError
from tkc.wheel.archive import HostileWheelError, read_wheel
from tkc.wheel.names import STORE, WheelName


@contextmanager
def open_store(path: Path) -> Iterator[Store]:
    """Give the store in a wheel, unpacked for the while, or at a folder.

    Raises TkcError if the wheel cannot be read or must not be unpacked, or the folder is full of something else. Says
    nothing of what is inside: see `tkc.wheel.audit`.
    """
    if path.is_dir():
        if any(path.iterdir()) and not any(path.glob("*-v[0-9]")):  # a store's folders carry a version
            raise TkcError(f"{path} holds no store. Give the folder that `tkc cache dir` prints, or one wheel's file")
        yield Store(path.absolute())
        return
    try:
        name = WheelName.parse(path.name)
    except ValueError as error:
        raise TkcError(f"{path} is neither a store nor a wheel of artifacts: {error}") from error
    with unpacked(name, read_wheel(path)) as store:
        yield store


@contextmanager
def unpacked(name: WheelName, members: Mapping[str, bytes]) -> Iterator[Store]:
    """Give the store among a wheel's members, in a temporary folder.

    Raises HostileWheelError for a name that cannot be a file's there: too long, or below another file.
    """
    prefix = f"{name.package}/{STORE}/"
    with tempfile.TemporaryDirectory(prefix="tkc-wheel-") as folder:
        for member, data in members.items():
            if member.startswith(prefix):
                _write(Path(folder, member.removeprefix(prefix)), data)
        yield Store(Path(folder), trusted=True)


def _write(path: Path, data: bytes) -> None:
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(data)
    except OSError as error:
        if error.errno in _NO_NAME:
            raise HostileWheelError(f"member {path.name:.60} cannot be unpacked: {error.strerror}") from error
        raise TkcError(f"a wheel cannot be unpacked to {path.parent}: {error.strerror or error}") from error


_NO_NAME = frozenset({errno.ENAMETOOLONG, errno.ENOTDIR, errno.EEXIST, errno.EISDIR, errno.EINVAL, errno.EILSEQ})
