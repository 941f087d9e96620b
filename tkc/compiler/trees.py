"""Digests of installed file trees, remembered as long as no file's stat changes."""

from __future__ import annotations

import contextlib
import os
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TypeAlias

from tkc.model import Digest

_SETTLED_NS = 2_000_000_000
"""A file changed less than this ago may change again without its stat showing it."""


@dataclass(frozen=True, slots=True)
class Tree:
    """Files below `root` that one tool consumes.

    Attributes:
        name: stands for `root` in digests, so that they are equal wherever it is installed.
        root: a folder, or one file.
        suffixes: of the files that count; none means all.
        skip: folders below `root`, relative to it, that do not count.
    """

    name: str
    root: Path
    suffixes: tuple[str, ...] = ()
    skip: frozenset[str] = frozenset()

    def files(self) -> Iterator[tuple[str, os.stat_result]]:
        """Relative name and stat of each file, in no particular order."""
        if self.root.is_file():
            yield "", self.root.stat()
            return
        pending = [""]
        while pending:
            folder = pending.pop()
            with os.scandir(self.root / folder) as entries:
                for entry in entries:
                    name = f"{folder}{entry.name}"
                    if entry.is_dir():
                        if entry.name != "__pycache__" and name not in self.skip:
                            pending.append(f"{name}/")
                    elif not self.suffixes or name.endswith(self.suffixes):
                        yield name, entry.stat()


def digest_trees(trees: Iterable[Tree], stamps_dir: Path | None) -> Digest:
    """One digest for the content of every file of `trees`.

    Content is read unless a stamp in `stamps_dir` was made for exactly these names, sizes, times of
    change and inodes. A stamps folder that is None, absent or read-only costs time, nothing else.
    Raises OSError if a file cannot be read.
    """
    listed = [(tree, sorted(tree.files())) for tree in trees]
    return _stamped(stamps_dir, _listing(listed), lambda: _content(listed), settled=_settled(listed))


_Listed: TypeAlias = list[tuple[Tree, list[tuple[str, os.stat_result]]]]


def _content(listed: _Listed) -> Digest:
    fields = {
        tree.name: {name: Digest.of_file(tree.root / name if name else tree.root) for name, _ in files}
        for tree, files in listed
    }
    return Digest.of_fields("tkc.tree/1", fields)


def _listing(listed: _Listed) -> Digest:
    """Stands for names and stats of all files; thousands of them, so one text is hashed and no canonical form."""
    lines = [
        f"{tree.name}/{name}\0{s.st_size} {s.st_mtime_ns} {s.st_ctime_ns} {s.st_ino} {s.st_dev}"
        for tree, files in listed
        for name, s in files
    ]
    return Digest.of_bytes("\n".join(lines).encode(errors="surrogateescape"))


def _settled(listed: _Listed) -> bool:
    newest = max((max(stat.st_mtime_ns, stat.st_ctime_ns) for _, files in listed for _, stat in files), default=0)
    return time.time_ns() - newest > _SETTLED_NS


def _stamped(stamps_dir: Path | None, listing: Digest, compute: Callable[[], Digest], *, settled: bool) -> Digest:
    if stamps_dir is None:
        return compute()
    stamp = stamps_dir / listing.hex
    with contextlib.suppress(OSError, ValueError):
        return Digest.parse(stamp.read_text())
    digest = compute()
    if settled:
        with contextlib.suppress(OSError):
            _write(stamp, str(digest))
    return digest


def _write(path: Path, text: str) -> None:
    path.parent.mkdir(exist_ok=True)
    handle, aside = tempfile.mkstemp(dir=path.parent, prefix=".stamp-")
    with os.fdopen(handle, "w") as file:
        file.write(text)
    Path(aside).replace(path)
