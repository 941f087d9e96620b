"""Read a wheel that nobody vouches for: into memory, bounded, by names that can lie nowhere but inside it."""

from __future__ import annotations

import csv
import stat
import struct
import zipfile
import zlib
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path, PurePosixPath

from wheel.wheelfile import WheelError, WheelFile

from tkc.errors import TkcError

MAX_MEMBERS = 50_000
MAX_BYTES = 10**9
MAX_RATIO = 100
"""Kernels deflate to a tenth; what deflates to less than a hundredth was made to fill memory."""

_METHODS = (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED)
_BAD_DATA = (
    WheelError,
    zipfile.BadZipFile,
    zlib.error,
    struct.error,
    csv.Error,
    EOFError,
    NotImplementedError,
    ValueError,
    RuntimeError,
)


class HostileWheelError(TkcError):
    """A wheel that must not be unpacked, and why."""


def read_wheel(path: Path) -> Mapping[str, bytes]:
    """Every member of a wheel, each compared with RECORD. Nothing is unpacked before all that it announces is bounded.

    Raises HostileWheelError for a file that is no wheel, is damaged, has members that RECORD does not list, lists
    that name what is not there, names that lead outside, links, repetitions, or more data than it should;
    TkcError if it cannot be read.
    """
    try:
        _require_tame(path)
        with WheelFile(path) as archive:
            members = {info.filename: archive.read(info) for info in archive.infolist()}
            record = members[archive.record_path].decode("utf-8")
            listed = {line[0] for line in csv.reader(record.splitlines()) if line}
    except _BAD_DATA as error:
        raise HostileWheelError(f"{path.name}: {error}") from error
    except OSError as error:
        raise TkcError(f"wheel {path} cannot be read: {error.strerror or error}") from error
    if absent := sorted(listed - set(members)):
        raise HostileWheelError(f"{path.name}: RECORD lists {absent[0]}, which is not in it")
    return members


def _require_tame(path: Path) -> None:
    """Refuse a wheel by what its directory says; WheelFile would read all of RECORD before anybody could ask."""
    status = path.stat()
    if not stat.S_ISREG(status.st_mode):
        raise HostileWheelError(f"{path.name}: it is no regular file")
    with zipfile.ZipFile(path) as archive:
        for problem in _problems(archive.infolist(), status.st_size):
            raise HostileWheelError(f"{path.name}: {problem}")


def _problems(infos: Sequence[zipfile.ZipInfo], file_bytes: int) -> Iterator[str]:
    if len(infos) > MAX_MEMBERS:
        yield f"it has {len(infos)} members; expected at most {MAX_MEMBERS}"
    total, most = sum(info.file_size for info in infos), min(MAX_BYTES, MAX_RATIO * file_bytes)
    if total > most:
        yield f"it unpacks to {total} bytes; expected at most {most} of {file_bytes}"
    for name, count in Counter(info.filename.casefold() for info in infos).items():
        if count > 1:
            yield f"member {name!r} is there {count} times"
    record_bytes = sum(_line_bytes(info) for info in infos)
    for info in infos:
        if why := _unsafe(info.filename):
            yield f"member {info.filename!r} {why}"
        if stat.S_IFMT(info.external_attr >> 16) not in (0, stat.S_IFREG):
            yield f"member {info.filename!r} is no regular file"
        if info.flag_bits & 0x1:
            yield f"member {info.filename!r} is encrypted"
        if info.compress_type not in _METHODS:
            yield f"member {info.filename!r} is packed by method {info.compress_type}; expected stored or deflated"
        if info.compress_size > file_bytes:
            yield f"member {info.filename!r} announces more bytes than the file has"
        if info.filename.endswith(".dist-info/RECORD") and info.file_size > record_bytes:
            yield f"RECORD has {info.file_size} bytes; {len(infos)} members take at most {record_bytes}"


def _line_bytes(info: zipfile.ZipInfo) -> int:
    """The most that a line of RECORD takes: a name, quoted perhaps, a digest and a size."""
    return 2 * len(info.filename.encode()) + 200


def _unsafe(name: str) -> str | None:
    parts = PurePosixPath(name).parts
    if not parts or name.startswith("/") or "\\" in name or ":" in parts[0]:
        return "has no plain relative name"
    if ".." in parts or str(PurePosixPath(name)) != name:
        return "has a name that leads elsewhere"
    return None
