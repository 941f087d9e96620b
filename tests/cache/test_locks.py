"""Locks save work; they are never what makes a result right."""

from __future__ import annotations

import errno
import fcntl
import os
import signal
import time
from pathlib import Path

import pytest

from tests.cache.helpers import action, build, in_child, in_children, library, request
from tkc.cache import Hit, Store, Waiting, locks


def build_if_missing(store: Store, counter: Path) -> bytes:
    """What each of several processes does that miss together; counts the compiles."""
    key = action().key
    with store.lock(key):
        found = store.lookup(key)
        if not found:
            with counter.open("a") as file:
                file.write(f"{os.getpid()}\n")
            time.sleep(0.2)
            with store.stage() as folder:
                (folder / "kernel.so").write_bytes(library())
                manifest = store.commit(action(), folder, ["kernel.so"], facts={})
                store.write_ref(request(), {"name": "one"}, manifest.key)
            found = Hit(manifest, store)
    return found.path("kernel.so").read_bytes()


def race(root: Path, processes: int) -> tuple[list[bytes], int]:
    counter = root.with_name("compiles")
    results = in_children([lambda: build_if_missing(Store(root, writable=True), counter)] * processes)
    return results, len(counter.read_text().splitlines())


@pytest.mark.parametrize("processes", [2, 8])
def test_processes_that_miss_at_once_compile_once(store: Store, processes: int) -> None:
    """A4, A8."""
    results, compiles = race(store.root, processes)
    assert results == [library()] * processes
    assert compiles == 1
    assert store.resolve(request())


@pytest.mark.parametrize("code", [errno.ENOLCK, errno.EOPNOTSUPP, errno.EIO], ids=errno.errorcode.get)
def test_where_every_lock_call_fails_everybody_compiles_and_is_right(
    store: Store, monkeypatch: pytest.MonkeyPatch, code: int
) -> None:
    """A5: flock on some network mounts."""

    def fail(*_args: object) -> None:
        raise OSError(code, os.strerror(code))

    monkeypatch.setattr(fcntl, "flock", fail)
    results, compiles = race(store.root, 4)
    assert results == [library()] * 4
    assert compiles == 4
    assert store.resolve(request()) and not any((store.root / "staging-v1").iterdir())


def test_eight_writers_of_one_key_without_any_lock_all_succeed(store: Store) -> None:
    """A2, A10: the store alone must be right."""

    def write() -> bool:
        mine = Store(store.root, writable=True)
        for _ in range(20):
            with mine.stage() as folder:
                (folder / "kernel.so").write_bytes(library())
                manifest = mine.commit(action(), folder, ["kernel.so"], facts={"pid": os.getpid()})
                mine.write_ref(request(), {"pid": os.getpid()}, manifest.key)
            assert mine.resolve(request())
        return True

    assert in_children([write] * 8) == [True] * 8
    assert [found for found in store.iter_manifests() if not found] == []
    assert not any((store.root / "staging-v1").iterdir())


def test_readers_during_removal_see_a_hit_or_a_miss_and_never_damage(store: Store) -> None:
    """A11: gc unlinks under readers; each reader gets everything or a reason."""

    finished = [store.root.with_name(f"reader {number}") for number in range(2)]

    def churn() -> bool:
        mine = Store(store.root, writable=True)
        while not all(path.exists() for path in finished):
            build(mine)
            for bucket in ("refs-v1", "actions-v1", "blobs-v1"):
                for path in (mine.root / bucket).glob("*/*"):
                    path.unlink()
        build(mine)
        return True

    def read(done: Path) -> bool:
        hits = misses = 0
        mine = Store(store.root)
        try:
            while hits < 100 or misses < 100:
                found = mine.resolve(request())
                assert found or not found.damaged, found
                hits, misses = (hits + 1, misses) if found else (hits, misses + 1)
        finally:
            done.touch()
        return True

    results = in_children([churn, lambda: read(finished[0]), lambda: read(finished[1])])
    assert results == [True] * 3
    assert store.resolve(request())
    assert not (store.root / "quarantine-v1").exists()


def test_a_lock_file_is_never_removed_and_waiters_share_it(store: Store) -> None:
    """A6: a removed lock file makes its waiters wait for nobody."""
    key = action().key
    inodes = set()
    for _ in range(3):
        with store.lock(key) as held:
            assert held
            inodes.add((store.root / "locks-v1" / f"{key.hex}.lock").stat().st_ino)
    assert len(inodes) == 1
    assert (store.root / "locks-v1" / f"{key.hex}.lock").read_bytes() == b""


def test_a_waiter_is_told_who_holds_the_lock_and_since_when(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    """A7: silence looks like a hang."""
    monkeypatch.setattr(locks, "REPORT_S", 0.2)
    ready_out, ready_in = os.pipe()
    holder = os.fork()
    if holder == 0:
        with store.lock(action().key):
            os.write(ready_in, b"x")
            time.sleep(0.8)
        os._exit(0)
    os.read(ready_out, 1)
    told: list[Waiting] = []
    with store.lock(action().key, on_wait=told.append) as held:
        assert held
    os.waitpid(holder, 0)
    assert len(told) >= 2, "at once, and again"
    assert told[0].waited_s < told[1].waited_s
    assert told[0].owner is not None and told[0].owner.pid == holder
    assert f"process {holder} on {os.uname().nodename}, since " in str(told[0])


def test_the_lock_of_a_killed_process_is_free_at_once(store: Store) -> None:
    ready_out, ready_in = os.pipe()
    holder = os.fork()
    if holder == 0:
        with store.lock(action().key):
            os.write(ready_in, b"x")
            time.sleep(60)
    os.read(ready_out, 1)
    os.kill(holder, signal.SIGKILL)
    os.waitpid(holder, 0)
    with store.lock(action().key, on_wait=lambda waiting: pytest.fail(str(waiting))) as held:
        assert held


def test_a_lock_that_a_dead_owner_left_taken_is_disregarded(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    """A7: its child lives on with the descriptor, as a network file system may keep a dead client's lock."""
    monkeypatch.setattr(locks, "GONE_S", 0.2)
    ready_out, ready_in = os.pipe()
    holder = os.fork()
    if holder == 0:
        with store.lock(action().key):
            orphan = os.fork()
            if orphan == 0:
                time.sleep(60)
                os._exit(0)
            os.write(ready_in, orphan.to_bytes(4, "little"))
            time.sleep(60)
    orphan = int.from_bytes(os.read(ready_out, 4), "little")
    os.kill(holder, signal.SIGKILL)
    os.waitpid(holder, 0)
    try:
        with store.lock(action().key) as held:
            assert held is False
            build_without_lock(store)
    finally:
        os.kill(orphan, signal.SIGKILL)
    assert store.resolve(request())


def build_without_lock(store: Store) -> None:
    with store.stage() as folder:
        (folder / "kernel.so").write_bytes(library())
        manifest = store.commit(action(), folder, ["kernel.so"], facts={})
        store.write_ref(request(), {}, manifest.key)


def test_a_wait_ends_after_its_timeout_and_work_goes_on_without(store: Store) -> None:
    path = str(store.root / "locks-v1" / "x.lock")
    with locks.hold(path) as held, locks.hold(path, timeout_s=0.1) as second:
        assert held is True and second is False
    with locks.hold(path) as held:
        assert held is True


def test_an_unreadable_owner_record_does_not_disturb_a_waiter(store: Store) -> None:
    path = store.root / "locks-v1" / "x.lock"
    with locks.hold(str(path)):
        for junk in (
            b"",
            b"\xff\xff",
            b"[]",
            b'{"host": 1}',
            b'{"host":"h","namespace":1,"pid":"x","since_s":0}',
        ):
            path.write_bytes(junk)
            told: list[Waiting] = []
            with locks.hold(str(path), on_wait=told.append, timeout_s=0.06) as held:
                assert held is False
            assert told[0].owner is None and "another process" in str(told[0])


def test_what_the_block_raises_passes_and_frees_the_lock(store: Store) -> None:
    with pytest.raises(ZeroDivisionError), store.lock(action().key):
        raise ZeroDivisionError
    with store.lock(action().key) as held:
        assert held


def test_a_child_forked_under_the_lock_does_not_keep_it(store: Store) -> None:
    with store.lock(action().key):
        child = os.fork()
        if child == 0:
            time.sleep(60)
            os._exit(0)
    try:
        with store.lock(action().key, on_wait=lambda waiting: pytest.fail(str(waiting))) as held:
            assert held
    finally:
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)


def test_a_forked_child_can_use_the_store_of_its_parent(store: Store) -> None:
    build(store)
    assert store.resolve(request())
    assert in_child(lambda: bool(store.resolve(request())))
    assert in_child(lambda: build(store, "two").key) == action("two").key
    assert store.resolve(request("two"))
