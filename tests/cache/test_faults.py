"""Writers that die, disks that fill, file systems that lie: every step of a build, one after the other."""

from __future__ import annotations

import ast
import errno
import os
import signal
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.cache.helpers import (
    FILE_CALLS,
    OTHER_CALLS,
    action,
    before_each_operation,
    before_each_step,
    build,
    fork_and_kill,
    kill_this_process,
    library,
    request,
    steps_of,
    stopping_at,
)
from tests.conftest import LEVEL
from tkc.cache import Hit, Miss, Store, files, staging
from tkc.errors import StoreError, StoreFullError, StoreReadOnlyError
from tkc.model import Digest


def steps_of_a_build(folder: Path) -> list[str]:
    """Each step of a first build, counted in a store of the same age as the one that will be hurt."""
    store = Store(folder / "counted", writable=True)
    build(store, "neighbour")
    return steps_of(lambda: build(store))


def hurt(folder: Path) -> Store:
    store = Store(folder, writable=True)
    build(store, "neighbour")
    return store


def assert_whole_or_absent(store: Store, where: str) -> None:
    """Whatever happened: nothing damaged is visible, the neighbour is unharmed, and building again works."""
    for blob in store.iter_blobs():
        assert Digest.of_file(store.blob_path(blob.name)) == blob.name, where
    assert all(
        isinstance(found, Hit) or not found.damaged for found in (store.lookup(action().key), store.resolve(request()))
    ), where
    assert all(store.iter_manifests()), where
    if store.resolve(request()):
        assert store.lookup(action().key), where
    assert store.resolve(request("neighbour")), where
    build(Store(store.root, writable=True))
    found = store.resolve(request())
    assert isinstance(found, Hit) and found.path("kernel.so").read_bytes() == library(), where


def staged(store: Store) -> list[str]:
    return [path.name for path in (store.root / "staging-v1").iterdir()]


def test_kill_before_any_step_leaves_each_entry_whole_or_absent(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(staging, "GONE_AGE_S", -1.0)
    steps = steps_of_a_build(tmp_path)
    assert {"open", "write", "fsync", "link", "rename", "mkdir"} <= set(steps)
    for number, name in enumerate(steps):
        where = f"killed before step {number}, {name}"
        store = hurt(tmp_path / str(number))
        with before_each_step(stopping_at(number, kill_this_process)):
            assert fork_and_kill(lambda store=store: build(store)) == signal.SIGKILL, where
        assert_whole_or_absent(Store(store.root), where)
        assert staged(store) == [], f"{where}: a later build removes what the killed one left"


def test_kill_in_the_middle_of_any_write_leaves_each_entry_whole_or_absent(tmp_path: Path) -> None:
    writes = steps_of_a_build(tmp_path).count("write")
    assert writes >= 4
    real = os.write

    for number in range(writes):
        store, left = hurt(tmp_path / str(number)), [number]

        def half(descriptor: int, data: bytes, left: list[int] = left) -> int:
            if left[0] == 0:
                real(descriptor, data[: len(data) // 2])
                kill_this_process()
            left[0] -= 1
            return real(descriptor, data)

        def run(store: Store = store, half=half) -> None:
            os.write = half
            build(store)

        assert fork_and_kill(run) == signal.SIGKILL
        assert_whole_or_absent(Store(store.root), f"killed inside write {number}")


def test_ctrl_c_before_any_step_leaves_each_entry_whole_or_absent(tmp_path: Path) -> None:
    """B4: an exception that may come from anywhere."""
    for number, name in enumerate(steps_of_a_build(tmp_path)):
        store = hurt(tmp_path / str(number))
        with pytest.raises(KeyboardInterrupt), before_each_step(stopping_at(number, raise_interrupt)):
            build(store)
        assert_whole_or_absent(Store(store.root), f"interrupted before step {number}, {name}")


def raise_interrupt() -> None:
    raise KeyboardInterrupt


@pytest.mark.parametrize(
    ("code", "expected"),
    [
        (errno.ENOSPC, StoreFullError),
        (errno.EDQUOT, StoreFullError),
        (errno.EROFS, StoreReadOnlyError),
        (errno.EIO, StoreError),
    ],
)
def test_a_disk_that_fails_at_any_step_is_a_store_error_and_leaves_nothing_half_made(
    tmp_path: Path, code: int, expected: type[StoreError]
) -> None:
    counted = hurt(tmp_path / "counted")
    with staged_result(counted) as folder:
        steps = steps_of(lambda: commit_and_point(counted, folder))
    failed = []
    for number, name in enumerate(steps):
        where = f"{os.strerror(code)} at step {number}, {name}"
        store = hurt(tmp_path / str(number))
        with staged_result(store) as folder, before_each_step(stopping_at(number, failing(code))):
            try:
                commit_and_point(store, folder)
            except StoreError as error:
                failed.append(name)
                assert type(error) is expected and str(store.root) in str(error), where
        assert staged(store) == [] or name == "unlink", where
        assert_whole_or_absent(Store(store.root), where)
    assert {"open", "write", "link", "rename", "mkdir"} <= set(failed)
    assert "unlink" not in failed, "cleaning up is never what fails"


CODES = [errno.ENOSPC, errno.EDQUOT, errno.EIO, errno.EROFS, errno.EACCES, errno.ESTALE]


@pytest.mark.parametrize("code", CODES, ids=errno.errorcode.get)
def test_an_error_of_any_file_operation_of_a_build_leaves_each_entry_whole_or_absent(tmp_path: Path, code: int) -> None:
    """Every operation, reading and closing too, as a run of the build makes them; below level 2 each with one code."""
    counted = hurt(tmp_path / "counted")
    operations = steps_of(lambda: build_load_and_build(counted), before_each_operation)
    assert {"open", "read", "close", "stat", "fstat", "io.open", "write", "link", "scandir"} <= set(operations)
    for number in range(len(operations)) if LEVEL > 1 else range(CODES.index(code), len(operations), len(CODES)):
        where = f"{errno.errorcode[code]} at operation {number}, {operations[number]}"
        store = hurt(tmp_path / str(number))
        with before_each_operation(stopping_at(number, failing(code))):
            try:
                build_load_and_build(store)
            except StoreError as error:
                assert str(store.root) in str(error), where
            except OSError:
                assert operations[number] == "io.open", f"{where}: only what a compiler wrote fails as it is"
        assert_whole_or_absent(Store(store.root), where)


def build_load_and_build(store: Store) -> None:
    """A first build, a load, and a build that finds everything in place."""
    build(store)
    store.resolve(request())
    build(store)


def test_no_file_operation_of_the_store_is_forgotten_by_these_tests(tmp_path: Path) -> None:
    """What the sources call is what is stopped at; and what Python itself reports of a build is what was counted."""
    used = {
        node.attr
        for package in ("tkc/cache", "cache_tools")
        for source in (Path(__file__).parents[2] / package).glob("*.py")
        for node in ast.walk(ast.parse(source.read_text()))
        if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name) and node.value.id == "os"
        if callable(getattr(os, node.attr, None)) and not isinstance(getattr(os, node.attr), type)
    }
    assert used - FILE_CALLS - OTHER_CALLS == set()
    store, reported = hurt(tmp_path / "store"), list[str]()
    with reporting(reported):
        operations = steps_of(lambda: build_load_and_build(store), before_each_operation)
    as_reported = {"os.remove": "unlink", "os.rename": "rename", "os.link": "link", "os.mkdir": "mkdir"}
    for event, name in (as_reported | {"os.scandir": "scandir", "os.utime": "utime", "os.rmdir": "rmdir"}).items():
        assert reported.count(event) == operations.count(name), event
    assert reported.count("open") == operations.count("open") + operations.count("io.open")


@contextmanager
def reporting(events: list[str]) -> Iterator[None]:
    """Collect the names of Python's audit events; the hook stays, and is silent afterwards."""
    on = True

    def hook(event: str, _args: object) -> None:
        if on:
            events.append(event)

    sys.addaudithook(hook)
    yield
    on = False


@contextmanager
def staged_result(store: Store) -> Iterator[Path]:
    with store.stage() as folder:
        (folder / "kernel.so").write_bytes(library())
        (folder / "kernel.cubin").write_bytes(b"cubin of one")
        yield folder


def commit_and_point(store: Store, folder: Path) -> None:
    manifest = store.commit(action(), folder, ["kernel.so", "kernel.cubin"], facts={"entry": "main"})
    store.write_ref(request(), {"name": "one"}, manifest.key)


def failing(code: int) -> Callable[[], None]:
    def fail() -> None:
        raise OSError(code, os.strerror(code))

    return fail


def test_a_full_disk_leaves_nothing_in_staging_and_says_what_to_do(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    build(store, "neighbour")
    with monkeypatch.context() as patch, store.stage() as folder:
        (folder / "kernel.so").write_bytes(library())

        def full(_descriptor: int, _data: bytes) -> int:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

        patch.setattr(os, "write", full)
        with pytest.raises(StoreFullError, match="Make room there"):
            store.commit(action(), folder, ["kernel.so"], facts={})
        assert staged(store) == [folder.name]
    assert staged(store) == []
    assert store.resolve(request("neighbour"))


def test_cleanup_that_fails_is_never_fatal(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    """A1: EBUSY from removing a temporary folder killed ranks whose work was done."""

    def busy(*_args: object, **_kwargs: object) -> None:
        raise OSError(errno.EBUSY, os.strerror(errno.EBUSY))

    with monkeypatch.context() as patch:
        patch.setattr(os, "unlink", busy)
        patch.setattr(os, "rmdir", busy)
        build(store)
    assert store.resolve(request())


def test_what_was_just_published_is_never_read_back(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    """A1, A3: reads fail from the first publication on, as on a client that does not see the names yet."""
    shown: list[str] = []
    real_show, real_read = files.show_new, files.read

    def show_new(aside: str, final: str) -> bool:
        shown.append(final)
        return real_show(aside, final)

    def read(path: str) -> tuple[bytes, os.stat_result]:
        assert path not in shown, f"{path} was read back"
        return real_read(path)

    with monkeypatch.context() as patch:
        patch.setattr(files, "show_new", show_new)
        patch.setattr(files, "read", read)
        manifest = build(store)
    assert len(shown) == 3
    assert store.lookup(manifest.key)


@pytest.mark.parametrize("code", [errno.ENOENT, errno.ESTALE], ids=errno.errorcode.get)
def test_a_loser_that_cannot_see_the_winner_uses_its_own_bytes(
    store: Store, monkeypatch: pytest.MonkeyPatch, code: int
) -> None:
    """A3: a network file system hides a new name for up to a minute, and the names exist all the same."""
    build(store)

    def unseen(path: str) -> tuple[bytes, os.stat_result]:
        raise OSError(code, os.strerror(code), path)

    with monkeypatch.context() as patch:
        patch.setattr(files, "read", unseen)
        manifest = build(store)
    assert Hit(manifest, store).path("kernel.so").read_bytes() == library()
    assert store.resolve(request())


def test_a_stale_handle_is_opened_once_more(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    """A6, A9."""
    build(store)
    real, stale = os.open, [True, False] * 100

    def open_(path: str, flags: int, *rest: int) -> int:
        if stale.pop(0):
            raise OSError(errno.ESTALE, os.strerror(errno.ESTALE), path)
        return real(path, flags, *rest)

    monkeypatch.setattr(os, "open", open_)
    assert store.resolve(request())


def test_a_handle_that_stays_stale_is_a_miss(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    build(store)
    with monkeypatch.context() as patch:

        def stale(path: str, *_rest: int) -> int:
            raise OSError(errno.ESTALE, os.strerror(errno.ESTALE), path)

        patch.setattr(os, "open", stale)
        found = store.resolve(request())
    assert isinstance(found, Miss) and not found.damaged and "tale" in found.reason
    assert store.resolve(request())


def test_a_published_file_is_never_replaced_while_it_is_good(store: Store) -> None:
    """A9: replacing a mapped library in place kills who mapped it."""
    manifest = build(store)
    path = Hit(manifest, store).path("kernel.so")
    with path.open("rb") as mapped:
        build(store)
        assert os.fstat(mapped.fileno()).st_ino == path.stat().st_ino
        assert os.fstat(mapped.fileno()).st_nlink == 1


def test_a_file_system_without_links_publishes_by_rename(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    def unsupported(*_args: object) -> None:
        raise OSError(errno.EPERM, os.strerror(errno.EPERM))

    monkeypatch.setattr(os, "link", unsupported)
    build(store)
    before = store.root.stat()
    assert store.resolve(request())
    build(store)
    assert store.resolve(request()) and staged(store) == [] and before.st_ino == store.root.stat().st_ino


def test_a_file_system_that_syncs_nothing_still_takes_builds(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "fsync", failing_always(errno.EINVAL))
    build(store)
    assert store.resolve(request())


def failing_always(code: int) -> Callable[..., None]:
    def fail(*_args: object) -> None:
        raise OSError(code, os.strerror(code))

    return fail


def test_what_a_build_finds_in_place_is_marked_as_in_use(store: Store) -> None:
    """Or a gc that spares recent entries could remove a blob between its reuse and the manifest."""
    build(store)
    entries = [*store.root.glob("blobs-v1/*/*"), *store.root.glob("actions-v1/*/*")]
    for path in entries:
        os.utime(path, (0, 0))
    build(store)
    assert len(entries) == 3 and all(path.stat().st_mtime > 0 for path in entries)


def test_a_folder_on_another_file_system_can_be_committed(store: Store) -> None:
    """A5: a compile runs in node-local memory, the store is somewhere else."""
    memory = Path("/dev/shm")
    assert memory.stat().st_dev != store.root.parent.stat().st_dev
    folder = memory / f"tkc-test-{os.getpid()}"
    folder.mkdir()
    try:
        (folder / "kernel.so").write_bytes(library())
        store.commit(action(), folder, ["kernel.so"], facts={})
    finally:
        (folder / "kernel.so").unlink()
        folder.rmdir()
    assert store.lookup(action().key)


def test_a_tool_that_keeps_writing_to_its_output_changes_nothing_published(store: Store) -> None:
    with store.stage() as folder, (folder / "kernel.so").open("wb") as output:
        output.write(library())
        output.flush()
        store.commit(action(), folder, ["kernel.so"], facts={})
        output.write(b"more")
    assert store.lookup(action().key)


def test_a_compile_that_fails_leaves_nothing(store: Store) -> None:
    """B2: no poisoned entry."""
    with pytest.raises(ZeroDivisionError), store.stage() as folder:
        (folder / "kernel.so").write_bytes(b"half")
        raise ZeroDivisionError
    assert staged(store) == [] and not list(store.iter_blobs()) and not store.lookup(action().key)


def test_leftovers_are_removed_only_when_their_process_is_gone_or_they_are_very_old(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    build(store)
    folder = store.root / "staging-v1"
    dead = os.fork()
    if dead == 0:
        os._exit(0)
    os.waitpid(dead, 0)
    with store.stage() as mine:
        host, namespace, _, _ = mine.name.split("~")
        names = {
            "dead, old": (f"{host}~{namespace}~{dead}~aa", 3600, False),
            "dead, young": (f"{host}~{namespace}~{dead}~bb", 1, True),
            "alive": (f"{host}~{namespace}~{os.getppid()}~cc", 3600, True),
            "another host": (f"{host}x~{namespace}~{dead}~dd", 3600, True),
            "another container of that name": (f"{host}~1{namespace}~{dead}~ee", 3600, True),
            "another host, very old": (f"{host}x~{namespace}~{dead}~ff", 30 * 24 * 3600, False),
            "unattributable, very old": ("junk", 30 * 24 * 3600, False),
        }
        for name, age_s, _ in names.values():
            (folder / name).mkdir()
            (folder / name / "kernel.so").write_bytes(b"half")
            old = (folder / name).stat().st_mtime - age_s
            os.utime(folder / name, (old, old))
        assert store.clean_staging() == 3
        for what, (name, _, stays) in names.items():
            assert (folder / name).exists() is stays, what
        assert mine.exists()


def test_quarantine_never_takes_a_good_entry_that_appeared_meanwhile(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A11: between the judgement and the move, another process put a good entry there."""
    manifest = build(store)
    path = Hit(manifest, store).path("kernel.so")
    path.chmod(0o644)
    path.write_bytes(b"damaged")
    path.chmod(0o444)
    real, healed = os.rename, []

    def heal_first(source: str, target: str) -> None:
        if source == str(path) and not healed:
            healed.append(True)
            (path.parent / "good").write_bytes(library())
            (path.parent / "good").chmod(0o444)
            real(path.parent / "good", path)
        real(source, target)

    with monkeypatch.context() as patch:
        patch.setattr(os, "rename", heal_first)
        assert store.resolve(request()).damaged
    assert healed and path.read_bytes() == library()
    assert store.resolve(request())
