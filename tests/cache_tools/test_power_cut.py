"""The power goes at any step: what was not synced is lost, and every entry is whole or absent all the same."""

from __future__ import annotations

import os
import shutil
import stat
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from unittest import mock

import pytest

from cache_tools.bundle import export, import_
from cache_tools.fsck import fsck
from cache_tools.gc import gc
from tests.cache_tools.helpers import DAY, age, library, make, request_of
from tests.conftest import LEVEL
from tkc.cache import Hit, Store


class PowerCutError(BaseException):
    """The machine is off; no handler of the program runs to its end."""


class Disk:
    """Follows what a program syncs, and takes back the rest when the power goes.

    Unsynced content is lost (the file keeps half), and so are names in a folder that was not synced since.
    """

    def __init__(self, cut_at: int | None = None) -> None:
        self.steps = 0
        self._cut_at = cut_at
        self._unsynced: set[int] = set()
        self._new_names: list[str] = []
        self._off = False

    @contextmanager
    def watching(self) -> Iterator[None]:
        names = ("write", "fsync", "link", "rename", "mkdir", "unlink")
        patches = {name: self._watched(name, getattr(os, name)) for name in names}
        with mock.patch.multiple(os, **patches):
            yield

    def lose_content(self, root: Path) -> None:
        for path in root.rglob("*"):
            if path.is_file() and path.stat().st_ino in self._unsynced:
                path.chmod(0o644)
                path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])
                path.chmod(0o444)

    def lose_names(self, among: Path) -> None:
        for name in self._new_names:
            if not Path(name).is_relative_to(among):
                continue
            if Path(name).is_dir():
                shutil.rmtree(name)
            else:
                Path(name).unlink(missing_ok=True)

    def _watched(self, name: str, call: Callable[..., Any]) -> Callable[..., Any]:
        def watched(*args: Any, **options: Any) -> Any:
            if self._off or self.steps == self._cut_at:
                self._off = True
                raise PowerCutError
            self.steps += 1
            result = call(*args, **options)
            getattr(self, f"_{name}", lambda *_: None)(*args)
            return result

        return watched

    def _write(self, descriptor: int, _data: bytes) -> None:
        self._unsynced.add(os.fstat(descriptor).st_ino)

    def _fsync(self, descriptor: int) -> None:
        status = os.fstat(descriptor)
        if stat.S_ISDIR(status.st_mode):
            folder = Path(f"/proc/self/fd/{descriptor}").readlink()
            self._new_names = [name for name in self._new_names if Path(name).parent != folder]
        self._unsynced.discard(status.st_ino)

    def _link(self, _source: str, target: str) -> None:
        self._new_names.append(target)

    def _rename(self, _source: str, target: str) -> None:
        self._new_names.append(target)

    def _mkdir(self, path: str, *_mode: int) -> None:
        self._new_names.append(str(path))


def build(root: Path, _bundle: Path) -> None:
    make(Store(root, writable=True), "one")


def take(root: Path, bundle: Path) -> None:
    import_(bundle, Store(root, writable=True))


def collect(root: Path, _bundle: Path) -> None:
    gc(Store(root, writable=True))


@pytest.mark.level1
@pytest.mark.parametrize("loss", ["content", "names"])
@pytest.mark.parametrize("act", [build, take, collect], ids=lambda act: act.__name__)
def test_a_power_cut_before_any_step_leaves_each_entry_whole_or_absent(
    act: Callable[[Path, Path], None], loss: str, tmp_path: Path
) -> None:
    source = Store(tmp_path / "source", writable=True)
    make(source, "one")
    bundle = tmp_path / "one.tar"
    export(source, bundle)

    def hurt(name: str) -> Store:
        store = Store(tmp_path / name, writable=True)
        make(store, "neighbour")
        if act is collect:
            make(store, "one")
            store.remove_ref(request_of("one").key)
            age(store, DAY)
        return store

    whole = Disk()
    with whole.watching():
        act(hurt_root := hurt("counted").root, bundle)
    del hurt_root
    made = Disk()
    with made.watching():
        hurt("made")
    steps = whole.steps - made.steps
    assert steps > 5
    for number in range(0 if loss == "content" else 1, steps, 1 if LEVEL > 1 else 3):
        store, disk = hurt(str(number)), Disk(cut_at=number)
        with disk.watching(), pytest.raises(PowerCutError):
            act(store.root, bundle)
        if loss == "content":
            disk.lose_content(store.root)
        else:
            disk.lose_names(store.root / "blobs-v1")  # the worst: what was shown first is lost, the rest is not
        where = f"cut before step {number}, {loss} lost"
        report = fsck(Store(store.root))
        assert report.problems == (), (where, report.problems)
        found = store.resolve(request_of("neighbour").key)
        assert isinstance(found, Hit) and found.path("kernel.so").read_bytes() == library("neighbour cpu"), where
        make(Store(store.root, writable=True), "one")
        assert fsck(Store(store.root)).exit_code == 0, where


def test_the_disk_of_these_tests_does_lose_what_is_not_synced(tmp_path: Path) -> None:
    disk = Disk()
    with disk.watching():
        descriptor = os.open(tmp_path / "file", os.O_WRONLY | os.O_CREAT)
        os.write(descriptor, b"12345678")
        os.close(descriptor)
        os.mkdir(tmp_path / "folder")  # noqa: PTH102
    disk.lose_content(tmp_path), disk.lose_names(tmp_path)
    assert (tmp_path / "file").read_bytes() == b"1234" and not (tmp_path / "folder").exists()
