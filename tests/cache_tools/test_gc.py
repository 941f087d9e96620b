"""gc deletes what no root reaches, and nothing that anybody may be using."""

from __future__ import annotations

import errno
import os
import signal
import threading
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import pytest

from cache_tools.gc import DEFAULT_GRACE_S, gc
from tests.cache.helpers import (
    before_each_step,
    fork_and_kill,
    in_children,
    kill_this_process,
    steps_of,
    stopping_at,
    tree,
)
from tests.cache_tools.conftest import Said
from tests.cache_tools.helpers import DAY, age, blob_digests, library, make, manifest_path, overwrite, request_of
from tkc.cache import Hit, Store, bucket, files
from tkc.errors import StoreDamagedError, StoreError, StoreReadOnlyError
from tkc.model import Digest


def hit(store: Store, name: str) -> bool:
    found = store.resolve(request_of(name).key)
    return isinstance(found, Hit) and found.path("kernel.so").read_bytes() == library(f"{name} cpu")


def drop(store: Store, name: str) -> None:
    """Let an artifact be unreachable, and everything long unused."""
    assert store.remove_ref(request_of(name).key)
    age(store, DAY)


def test_what_a_ref_reaches_stays_and_the_rest_goes(store: Store) -> None:
    make(store, "one"), make(store, "two")
    kept = {entry.digest for manifest in store.iter_manifests() for entry in manifest.files}
    drop(store, "two")
    found = gc(store)
    assert (found.manifests, found.blobs, found.waiting_blobs) == (4, 3, 0)
    assert found.freed_bytes >= len(library("two cpu"))
    assert hit(store, "one") and len(list(store.keys())) == 4
    assert blob_digests(store) < kept and len(blob_digests(store)) == 3
    assert gc(store).manifests == 0


def test_stages_stay_while_the_compile_that_consumed_them_is_reachable(store: Store) -> None:
    manifest = make(store, "one")
    age(store, DAY)
    assert gc(store).manifests == 0
    linked = store.read_manifest(manifest.inputs[0])
    assert linked and all(store.lookup(key) for key in linked.inputs)


def test_blobs_shared_with_a_reachable_artifact_stay(store: Store) -> None:
    make(store, "one", library_bytes=library("same"))
    make(store, "two", library_bytes=library("same"))
    drop(store, "two")
    assert gc(store).manifests == 4
    assert store.resolve(request_of("one").key)


def test_a_pin_is_a_root_and_counts_even_if_its_record_is_damaged(store: Store) -> None:
    manifest = make(store, "one")
    store.pin(manifest.key, "release")
    (path,) = store.root.glob("pins-v1/*/*")
    overwrite(path, b"junk")
    drop(store, "one")
    assert gc(store).manifests == 0
    assert store.lookup(manifest.key) and [pin.note for pin in store.pins()] == [""]
    assert store.unpin(manifest.key)
    age(store, DAY)
    assert gc(store).manifests == 4


def test_the_grace_period_begins_when_the_ref_is_dropped(store: Store) -> None:
    """A reader that has read the ref may be about to read the manifest and the blobs, however old they are."""
    manifest = make(store, "one")
    age(store, 30 * DAY)
    store.remove_ref(request_of("one").key)
    found = gc(store)
    assert (found.manifests, found.blobs, found.waiting_blobs) == (0, 0, 3)
    assert store.lookup(manifest.key)
    assert gc(store, grace_s=0).blobs == 3


def test_a_dry_run_counts_the_same_and_changes_nothing(store: Store) -> None:
    make(store, "one"), make(store, "two")
    drop(store, "one")
    before = tree(store.root)
    planned = gc(Store(store.root), dry_run=True)
    assert tree(store.root) == before
    assert gc(store) == planned


def test_a_read_only_store_is_not_collected(store: Store) -> None:
    make(store, "one")
    with pytest.raises(StoreReadOnlyError):
        gc(Store(store.root))


def test_an_empty_store_is_fine(store: Store) -> None:
    assert gc(store).manifests == 0


def test_a_blob_that_a_build_reuses_before_its_manifest_is_there_stays(store: Store) -> None:
    """gc during builds: the blob is old and unreachable, and the build found it in place."""
    make(store, "one")
    drop(store, "one")
    reused = Digest.of_bytes(library("one cpu"))
    store.publish_blob(library("one cpu"))
    gc(store)
    assert blob_digests(store) == {reused}


def test_a_stage_that_a_build_reuses_stays_with_all_its_blobs(store: Store) -> None:
    manifest = make(store, "one")
    drop(store, "one")
    linked = manifest.inputs[0]
    assert store.lookup(linked)
    gc(store)
    assert store.lookup(linked) and not store.lookup(manifest.key)


def test_a_use_between_the_judgement_and_the_removal_puts_the_entry_back(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The stamp comes at the last moment: after the entry was judged, before it is renamed aside."""
    make(store, "one")
    drop(store, "one")
    victim = store.blob_path(Digest.of_bytes(library("one cpu")))
    real = os.rename

    def stamp_first(source: str, target: str) -> None:
        if source == str(victim):
            os.utime(source)
        real(source, target)

    monkeypatch.setattr(os, "rename", stamp_first)
    gc(store)
    assert victim.read_bytes() == library("one cpu")


def test_a_build_that_finds_an_entry_in_place_just_as_it_goes_writes_it_itself(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The other order: the entry was good when the build looked, and gone when it marked it as in use."""
    make(store, "one")
    drop(store, "one")
    real, collected = files.touch, []

    def collect_first(path: str) -> bool:
        if not collected:
            collected.append(gc(Store(store.root, writable=True)))
        return real(path)

    monkeypatch.setattr(files, "touch", collect_first)
    digest = store.publish_blob(library("one cpu"))
    assert collected[0].blobs == 3
    assert store.read_blob(digest) == library("one cpu")


def test_a_lookup_of_a_manifest_that_goes_at_that_moment_is_a_miss(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    manifest = make(store, "one")
    drop(store, "one")
    real = files.touch

    def collect_first(path: str) -> bool:
        gc(Store(store.root, writable=True))
        return real(path)

    monkeypatch.setattr(files, "touch", collect_first)
    found = store.lookup(manifest.key)
    assert not found and "just been removed" in found.reason


def test_a_reader_that_opened_a_file_keeps_its_bytes(store: Store) -> None:
    make(store, "one")
    path = store.blob_path(Digest.of_bytes(library("one cpu")))
    with path.open("rb") as opened:
        first = opened.read(10)
        drop(store, "one")
        gc(store)
        assert not path.exists()
        assert first + opened.read() == library("one cpu")


def test_uses_are_noted_once_an_hour_and_never_on_a_read_only_layer(store: Store) -> None:
    manifest = make(store, "one")
    path = manifest_path(store, manifest.key)
    for seconds, reader, noted in (
        (bucket.STAMP_S / 2, store, False),
        (2 * bucket.STAMP_S, Store(store.root), False),
        (2 * bucket.STAMP_S, store, True),
    ):
        age(store, seconds)
        before = path.stat().st_mtime_ns
        assert reader.resolve(request_of("one").key) and reader.lookup(manifest.key)
        assert (path.stat().st_mtime_ns != before) is noted


def test_the_grace_period_is_longer_than_a_stamp_can_be_late() -> None:
    assert DEFAULT_GRACE_S >= 2 * bucket.STAMP_S


@pytest.mark.level1
def test_kill_before_any_step_of_a_gc_leaves_every_reachable_artifact_whole(store: Store, tmp_path: Path) -> None:
    def hurt(root: Path) -> Store:
        fresh = Store(root, writable=True)
        make(fresh, "one"), make(fresh, "two")
        drop(fresh, "two")
        return fresh

    steps = steps_of(lambda: gc(hurt(tmp_path / "counted")))
    start = len(steps_of(lambda: hurt(tmp_path / "made")))
    assert {"rename", "unlink"} <= set(steps[start:])
    for number in range(len(steps) - start):
        victim = hurt(tmp_path / str(number))
        with before_each_step(stopping_at(number, kill_this_process)):
            assert fork_and_kill(lambda victim=victim: gc(victim)) == signal.SIGKILL
        assert hit(victim, "one")
        assert all(victim.iter_manifests())
        make(victim, "two")
        assert hit(victim, "two")
        age(victim, DAY)
        gc(victim)
        assert hit(victim, "one") and hit(victim, "two")


@pytest.mark.parametrize("code", [errno.EIO, errno.ESTALE, errno.EACCES], ids=errno.errorcode.get)
def test_an_entry_that_cannot_be_read_stops_a_gc_before_anything_is_removed(
    store: Store, monkeypatch: pytest.MonkeyPatch, code: int
) -> None:
    """What it reaches would look like garbage."""
    make(store, "one"), make(store, "two")
    drop(store, "two")
    before = tree(store.root)
    real = files.read

    def unreadable(path: str) -> tuple[bytes, os.stat_result]:
        if path.endswith(f"{request_of('one').key.hex}.json"):
            raise OSError(code, os.strerror(code), path)
        return real(path)

    monkeypatch.setattr(files, "read", unreadable)
    with pytest.raises(StoreError, match="nothing is removed"):
        gc(store)
    assert tree(store.root) == before


@pytest.mark.parametrize("code", [errno.EIO, errno.ESTALE, errno.EACCES], ids=errno.errorcode.get)
@pytest.mark.parametrize("kind", ["refs-v1", "pins-v1", "actions-v1", "blobs-v1"])
def test_a_folder_that_cannot_be_listed_stops_a_gc_before_anything_is_removed(
    store: Store, monkeypatch: pytest.MonkeyPatch, code: int, kind: str
) -> None:
    """It looked empty: what its refs reach was removed."""
    pinned = make(store, "pinned")
    store.pin(pinned.key)
    make(store, "one"), make(store, "two")
    store.remove_ref(request_of("pinned").key)
    drop(store, "two")
    before = tree(store.root)
    real = os.scandir

    def failing(path: str) -> object:
        if f"/{kind}/" in str(path):
            raise OSError(code, os.strerror(code), path)
        return real(path)

    with monkeypatch.context() as patch:
        patch.setattr(os, "scandir", failing)
        with pytest.raises(StoreError, match="cannot be listed"):
            gc(store)
    assert {name: data for name, data in tree(store.root).items() if "staging" not in name} == before
    assert hit(store, "one") and store.lookup(pinned.key)


def test_a_damaged_or_foreign_file_stops_no_gc(store: Store) -> None:
    """B1: one orphan file disabled eviction for good."""
    make(store, "one"), make(store, "two")
    drop(store, "two")
    (store.root / "blobs-v1" / "orphan-atime").write_bytes(b"x")
    (store.root / "actions-v1" / "zz").mkdir()
    overwrite(manifest_path(store, next(iter(store.keys()))), b"junk")
    gc(store)
    assert {path.name for path in (store.root / "blobs-v1").iterdir() if path.is_file()} == {"orphan-atime"}


def test_gc_beside_builds_that_reuse_what_it_is_about_to_delete_loses_nothing(store: Store) -> None:
    """Everything is old and unreachable; two builds make it reachable again while two collectors delete it."""
    names = [f"kernel{number}" for number in range(16)]
    for name in names:
        make(store, name)
        store.remove_ref(request_of(name).key)
    age(store, DAY)

    def build(order: list[str]) -> int:
        mine = Store(store.root, writable=True)
        return sum(isinstance(mine.lookup(make(mine, name).key), Hit) for name in order)

    def collect() -> int:
        mine = Store(store.root, writable=True)
        return sum(gc(mine).blobs for _ in range(8))

    built = in_children([lambda: build(names), lambda: build(names[::-1]), collect, collect])
    assert built[:2] == [len(names)] * 2, built
    assert all(hit(store, name) for name in names)


def test_a_grace_period_far_too_short_costs_rebuilds_and_never_a_wrong_result(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Builders, readers and collectors at once: every read is whole or a miss."""
    monkeypatch.setattr(bucket, "STAMP_S", 0.0)
    names = [f"kernel{number}" for number in range(6)]

    def build() -> None:
        mine = Store(store.root, writable=True)
        for name in names * 6:
            make(mine, name)

    def load() -> None:
        reader = Store(store.root)
        for name in names * 100:
            found = reader.resolve(request_of(name).key)
            assert found or not found.damaged, found.reason
            with suppress(StoreDamagedError):
                data = found and reader.read_blob(found.manifest.file("kernel.so").digest)
                assert not data or data == library(f"{name} cpu")

    def collect() -> None:
        mine = Store(store.root, writable=True)
        for number in range(30):
            gc(mine, grace_s=0)
            mine.remove_ref(request_of(names[number % len(names)]).key)

    results = in_children([build, build, load, collect, collect])
    assert results[2:] == [None] * 3, results
    for name in names:
        make(store, name)
        assert hit(store, name)


def test_stamps_of_tools_whose_artifacts_are_gone_go_and_the_others_stay(store: Store) -> None:
    """They were never removed: each new toolchain left some behind, for good."""
    make(store, "one", tilelang="0.1.15"), make(store, "two", tilelang="0.1.14")
    assert store.stamps_dir
    store.stamps_dir.mkdir()
    held = {
        "a": str(Digest.of_bytes(b"0.1.15")),
        "b": str(Digest.of_bytes(b"0.1.14")),
        "c": str(Digest.of_bytes(b"of a tool that never made anything")),
        "d": "damaged",
    }
    for name, text in held.items():
        (store.stamps_dir / Digest.of_bytes(name.encode()).hex).write_text(text)
    (store.stamps_dir / ".stamp-left").write_text("")
    (store.stamps_dir / "scratch").mkdir()
    young = store.stamps_dir / Digest.of_bytes(b"young").hex
    drop(store, "two")
    for path in store.stamps_dir.iterdir():
        os.utime(path, (0, 0))
    young.write_text(held["c"])
    assert gc(Store(store.root), dry_run=True).stamps == 4
    assert gc(store).stamps == 4
    stays = {Digest.of_bytes(b"a").hex, young.name, "scratch"}
    assert {path.name for path in store.stamps_dir.iterdir()} == stays
    assert gc(store).stamps == 0


def test_two_collectors_at_once_do_no_harm(store: Store) -> None:
    for name in ("one", "two", "three"):
        make(store, name)
    store.remove_ref(request_of("two").key)
    drop(store, "three")
    gate = threading.Barrier(2)

    def collect() -> None:
        gate.wait()
        gc(Store(store.root, writable=True))

    threads = [threading.Thread(target=collect) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert hit(store, "one") and len(list(store.keys())) == 4


def test_the_command_prints_counts_and_takes_dry_run(store: Store, cache: Callable[..., Said]) -> None:
    make(store, "one")
    drop(store, "one")
    planned = cache("gc", "--dry-run", "--json").json
    assert planned["blobs"] == 3 and len(blob_digests(store)) == 3
    assert cache("gc", "--json").json == {**planned, "dry_run": False}
    assert "0 manifests and 0 blobs deleted" in cache("gc", "--grace", "5d").out
