"""Read a wheel that nobody vouches for: into memory, bounded, by names that can lie nowhere but inside it."""

from __future__ import annotations

import csv
import stat
import zipfile
import zlib
from collections import Counter
from collections.abc import Iterator, Mapping
from pathlib import Path, PurePosixPath

from wheel.wheelfile import WheelError, WheelFile

from tkc.errors import TkcError

MAX_MEMBERS = 200_000
MAX_BYTES = 4 * 10**9


class HostileWheelError(TkcError):
    """A wheel that must not be unpacked, and why."""


def read_wheel(path: Path) -> Mapping[str, bytes]:
    """Every member of a wheel, each compared with RECORD.

    Raises HostileWheelError for a file that is no wheel, is damaged, has members that RECORD does not list, lists
    that name what is not there, names that lead outside, links, repetitions, or more data than it should;
    TkcError if it cannot be read.
    """
    try:
        with WheelFile(path) as archive:
            for problem in _problems(archive):
                raise HostileWheelError(f"{path.name}: {problem}")
            members = {info.filename: archive.read(info) for info in archive.infolist()}
            record = members[archive.record_path].decode("utf-8")
    except (
        WheelError,
        zipfile.BadZipFile,
        zlib.error,
        EOFError,
        NotImplementedError,
        ValueError,
        RuntimeError,
    ) as error:
        raise HostileWheelError(f"{path.name}: {error}") from error
    except OSError as error:
        raise TkcError(f"wheel {path} cannot be read: {error.strerror or error}") from error
    listed = {line[0] for line in csv.reader(record.splitlines()) if line}
    if absent := sorted(listed - set(members)):
        raise HostileWheelError(f"{path.name}: RECORD lists {absent[0]}, which is not in it")
    return members


def _problems(archive: WheelFile) -> Iterator[str]:
    infos = archive.infolist()
    if len(infos) > MAX_MEMBERS:
        yield f"it has {len(infos)} members; expected at most {MAX_MEMBERS}"
    if (total := sum(info.file_size for info in infos)) > MAX_BYTES:
        yield f"it unpacks to {total} bytes; expected at most {MAX_BYTES}"
    for name, count in Counter(info.filename.casefold() for info in infos).items():
        if count > 1:
            yield f"member {name!r} is there {count} times"
    for info in infos:
        if why := _unsafe(info.filename):
            yield f"member {info.filename!r} {why}"
        mode = info.external_attr >> 16
        if stat.S_IFMT(mode) not in (0, stat.S_IFREG):
            yield f"member {info.filename!r} is no regular file"
        if info.flag_bits & 0x1:
            yield f"member {info.filename!r} is encrypted"


def _unsafe(name: str) -> str | None:
    parts = PurePosixPath(name).parts
    if not parts or name.startswith("/") or "\\" in name or ":" in parts[0]:
        return "has no plain relative name"
    if ".." in parts or str(PurePosixPath(name)) != name:
        return "has a name that leads elsewhere"
    return None
