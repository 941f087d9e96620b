"""What a store promises when nothing goes wrong, and how it takes one damaged entry."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

import pytest

from tests.cache.helpers import action, build, library, request, tree
from tkc.cache import Hit, Miss, Store
from tkc.cache.quarantine import MAX_ENTRIES
from tkc.cache.sealed import seal
from tkc.errors import StoreDamagedError, StoreError, StoreReadOnlyError
from tkc.model import Digest


def entry(store: Store, kind: str) -> Path:
    """The one file of a kind that `build` made."""
    if kind == "blob":
        return store.blob_path(Digest.of_bytes(library()))
    (path,) = store.root.glob(f"{kind}s-v1/*/*")
    return path


def overwrite(path: Path, data: bytes) -> None:
    """Damage a published file in place, as a failing disk would."""
    path.chmod(0o644)
    path.write_bytes(data)
    path.chmod(0o444)


def test_a_built_artifact_is_found_by_its_key_and_by_its_request(store: Store) -> None:
    manifest = build(store)
    for found in (store.lookup(action().key), store.resolve(request()), Store(store.root).resolve(request())):
        assert isinstance(found, Hit)
        assert found.manifest == manifest
        assert found.path("kernel.so").read_bytes() == library()
    assert store.read_blob(manifest.file("kernel.so").digest) == library()
    assert store.read_ref(request()) == manifest.key
    assert store.find(request()) == store.read_manifest(manifest.key) == manifest


def test_a_miss_says_what_is_not_there(store: Store) -> None:
    build(store)
    assert "ref" in store.resolve(request("two")).reason
    assert "manifest" in store.lookup(action("two").key).reason
    assert store.read_ref(request("two")) is None
    with pytest.raises(StoreDamagedError, match="is not there"):
        store.read_blob(Digest.of_bytes(b"nothing"))


def test_equal_bytes_of_two_artifacts_are_kept_once(store: Store) -> None:
    build(store, "one", files={"kernel.so": b"same"})
    build(store, "two", files={"kernel.so": b"same"})
    assert [blob.size_bytes for blob in store.iter_blobs()] == [4]
    assert store.resolve(request("one")) and store.resolve(request("two"))


def test_a_ref_can_be_pointed_elsewhere_and_is_not_rewritten_for_nothing(store: Store) -> None:
    one, two = build(store, "one"), build(store, "two")
    before = entry_stat(store, "one")
    store.write_ref(request("one"), {"spec": "moe.topk_gate", "name": "one"}, one.key)
    assert entry_stat(store, "one") == before
    store.write_ref(request("one"), {"spec": "moe.topk_gate", "name": "one"}, two.key)
    assert store.read_ref(request("one")) == two.key


def entry_stat(store: Store, name: str) -> tuple[int, int]:
    (path,) = store.root.glob(f"refs-v1/*/{request(name).hex}.json")
    return path.stat().st_ino, path.stat().st_mtime_ns


def test_listing_gives_every_entry(store: Store) -> None:
    keys = {build(store, name).key for name in ("one", "two", "three")}
    assert {manifest.key for manifest in store.iter_manifests() if manifest} == keys
    assert {ref.key for ref in store.refs()} == keys
    assert {ref.fields["name"] for ref in store.refs()} == {"one", "two", "three"}
    assert len(list(store.iter_blobs())) == 6
    assert "3 manifests, 3 refs" in store.describe()


def test_published_files_are_read_only_whatever_the_umask(store: Store) -> None:
    mask = os.umask(0)
    try:
        build(store)
    finally:
        os.umask(mask)
    for path in store.root.rglob("*-v1/**"):
        assert path.stat().st_mode & 0o022 == 0, path
    assert entry(store, "blob").stat().st_mode & 0o777 == 0o444
    assert store.resolve(request())


def test_a_name_that_leaves_the_folder_is_refused(store: Store, tmp_path: Path) -> None:
    (tmp_path / "secret").write_text("secret")
    with store.stage() as folder, pytest.raises(ValueError, match="plain name"):
        store.commit(action(), folder, [f"{os.path.relpath(tmp_path, folder)}/secret"], facts={})
    assert not store.lookup(action().key)
    assert not list(store.iter_blobs())


def test_a_file_that_was_not_produced_leaves_nothing_visible(store: Store) -> None:
    with store.stage() as folder, pytest.raises(FileNotFoundError):
        (folder / "kernel.so").write_bytes(b"x")
        store.commit(action(), folder, ["kernel.so", "kernel.cubin"], facts={})
    assert not list(store.iter_blobs()) and not list(store.keys())


def test_reading_creates_nothing_even_where_there_is_no_store(tmp_path: Path) -> None:
    for store in (Store(tmp_path / "a" / "store"), Store(tmp_path / "b" / "store", writable=True)):
        assert not store.lookup(action().key)
        assert not store.resolve(request())
        assert "no folder" in store.resolve(request()).reason
        assert not [*store.refs(), *store.iter_manifests(), *store.iter_blobs()]
        assert len(store.miss_log.read()) == 0
        assert "empty" in store.describe()
    assert list(tmp_path.iterdir()) == []


def test_reading_a_built_store_changes_nothing(store: Store) -> None:
    build(store)
    before = tree(store.root)
    times = {path: path.stat().st_mtime_ns for path in store.root.rglob("*")}
    for reader in (store, Store(store.root), Store(store.root, writable=True)):
        assert reader.resolve(request()) and not reader.resolve(request("two"))
        list(reader.refs()), list(reader.iter_manifests()), list(reader.iter_blobs())
    assert tree(store.root) == before
    assert {path: path.stat().st_mtime_ns for path in store.root.rglob("*")} == times


def test_a_read_only_layer_refuses_writes_and_says_where_to_write(store: Store, tmp_path: Path) -> None:
    build(store)
    layer = Store(store.root)
    before = tree(store.root)
    with pytest.raises(StoreReadOnlyError, match="TKC_CACHE_DIR"), layer.stage():
        pass
    with pytest.raises(StoreReadOnlyError):
        layer.commit(action(), tmp_path, [], facts={})
    with pytest.raises(StoreReadOnlyError):
        layer.write_ref(request(), {}, action().key)
    with pytest.raises(StoreReadOnlyError):
        layer.keep_log(action().key, "log")
    with pytest.raises(StoreReadOnlyError):
        layer.require_writable()
    with layer.lock(action().key) as held:
        assert held is False
    assert layer.stamps_dir is None
    assert tree(store.root) == before


def test_a_kept_log_is_the_end_of_a_long_one(store: Store) -> None:
    path = store.keep_log(action().key, "x" * 2_000_000 + "the error")
    assert path.parent == store.log_dir
    assert path.read_text().endswith("the error")
    assert path.stat().st_size <= 1_000_000
    assert store.keep_log(action().key, "second try").read_text() == "second try"


# Damage (B3, B4): a miss that names the entry, never a crash; quarantined; healed by the next build.


@pytest.mark.parametrize("kind", ["blob", "action", "ref"])
def test_any_flipped_bit_is_a_miss_and_is_quarantined(store: Store, kind: str) -> None:
    build(store)
    path = entry(store, kind)
    good = path.read_bytes()
    for position in range(0, len(good), max(1, len(good) // 150)):
        damaged = bytearray(good)
        damaged[position] ^= 1 << (position % 8)
        overwrite(path, bytes(damaged))
        found = store.resolve(request())
        assert isinstance(found, Miss) and found.damaged, position
        assert "is damaged" in found.reason and "moved to" in found.reason
        assert not path.exists()
        build(store)
        assert store.resolve(request()), position
        assert path.read_bytes() == good


@pytest.mark.parametrize("kind", ["blob", "action", "ref"])
def test_any_truncation_is_a_miss_and_so_is_an_empty_read(store: Store, kind: str) -> None:
    build(store)
    path = entry(store, kind)
    good = path.read_bytes()
    for size in (0, 1, len(good) // 2, len(good) - 67, len(good) - 1):
        overwrite(path, good[:size])
        found = store.resolve(request())
        assert isinstance(found, Miss) and found.damaged, size
        build(store)
        assert store.resolve(request()), size


@pytest.mark.parametrize("kind", ["action", "ref"])
@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"[]",
        b"null",
        b"{}",
        b"\xff\xfe",
        b"[" * 100_000,
        b'{"schema":"tkc.manifest/1"}',
        b'{"schema":"tkc.ref/1"}',
    ],
    ids=["empty", "list", "null", "object", "not-utf8", "deep", "manifest-schema-only", "ref-schema-only"],
)
def test_a_sealed_record_that_makes_no_sense_is_a_miss(store: Store, kind: str, body: bytes) -> None:
    build(store)
    overwrite(entry(store, kind), seal(body))
    found = store.resolve(request())
    assert isinstance(found, Miss) and found.damaged
    build(store)
    assert store.resolve(request())


def test_an_entry_filed_under_another_name_is_a_miss(store: Store) -> None:
    build(store, "one"), build(store, "two")
    for bucket, one, two in (
        ("refs-v1", request("one"), request("two")),
        ("actions-v1", action("one").key, action("two").key),
    ):
        target = store.root / bucket / one.hex[:2] / f"{one.hex}.json"
        target.unlink()
        shutil.copy2(store.root / bucket / two.hex[:2] / f"{two.hex}.json", target)
        assert store.resolve(request("one")).damaged
        build(store, "one")
        assert store.resolve(request("one"))


def test_a_missing_blob_is_a_miss_that_names_the_file_and_a_build_heals_it(store: Store) -> None:
    manifest = build(store)
    entry(store, "blob").unlink()
    found = store.resolve(request())
    assert isinstance(found, Miss) and not found.damaged
    assert "kernel.so" in found.reason and manifest.file("kernel.so").digest.short in found.reason
    build(store)
    assert store.resolve(request())


def test_a_build_that_differs_replaces_a_manifest_whose_blobs_are_gone(store: Store) -> None:
    build(store, files={"kernel.so": b"first result"})
    store.blob_path(Digest.of_bytes(b"first result")).unlink()
    build(store, files={"kernel.so": b"second result"})
    found = store.resolve(request())
    assert isinstance(found, Hit) and found.path("kernel.so").read_bytes() == b"second result"


def test_a_read_only_layer_reports_damage_and_moves_nothing(store: Store) -> None:
    build(store)
    path = entry(store, "blob")
    overwrite(path, b"damaged")
    before = tree(store.root)
    found = Store(store.root).resolve(request())
    assert isinstance(found, Miss) and found.damaged and "moved" not in found.reason
    assert tree(store.root) == before


def test_damage_that_no_lookup_met_is_replaced_by_the_next_commit(store: Store) -> None:
    build(store, files={"kernel.so": library()})
    overwrite(entry(store, "blob"), b"damaged")
    build(store, "two", files={"kernel.so": library()})
    assert store.resolve(request("two"))
    assert entry(store, "blob").read_bytes() == library()


def test_quarantine_keeps_the_damaged_bytes_with_a_note_and_is_bounded(store: Store) -> None:
    for number in range(MAX_ENTRIES + 5):
        build(store)
        overwrite(entry(store, "blob"), b"damage %d" % number)
        assert store.resolve(request()).damaged
    folder = store.root / "quarantine-v1"
    notes = sorted(folder.glob("*.note.json"))
    kept = sorted(path for path in folder.iterdir() if path not in notes)
    assert len(kept) == len(notes) == MAX_ENTRIES
    assert kept[-1].read_bytes() == b"damage %d" % (MAX_ENTRIES + 4)
    assert '"reason"' in notes[-1].read_text() and str(store.root) not in notes[-1].read_text()


def test_what_is_no_entry_disturbs_no_listing_and_no_lookup(store: Store) -> None:
    """B1, A2: one orphan, one directory, one pipe, one dangling link among the entries."""
    build(store)
    for bucket in ("blobs-v1", "actions-v1", "refs-v1"):
        folder = store.root / bucket / "ab"
        folder.mkdir(exist_ok=True)
        (folder / "orphan.tmp").write_bytes(b"half")
        (folder / ("ab" * 32)).mkdir()
        os.mkfifo(folder / ("ab12" * 16))
        (folder / ("ab34" * 16)).symlink_to("nowhere")
        (store.root / bucket / "stray").write_bytes(b"")
    assert len(list(store.refs())) == 1
    assert sum(1 for manifest in store.iter_manifests() if manifest) == 1
    assert len(list(store.iter_blobs())) >= 2
    assert not store.lookup(Digest("ab" * 32)) and not store.lookup(Digest("ab12" * 16))
    assert store.resolve(request())


def test_an_error_of_the_disk_is_a_miss_and_no_damage(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    build(store)
    with monkeypatch.context() as patch:
        patch.setattr(os, "read", raising(OSError(5, "Input/output error")))
        found = store.resolve(request())
    assert isinstance(found, Miss) and not found.damaged and "Input/output error" in found.reason
    assert store.resolve(request())


def raising(error: OSError):
    def fail(*_args: object, **_kwargs: object) -> None:
        raise error

    return fail


def test_a_file_in_place_of_the_root_is_a_store_error(tmp_path: Path) -> None:
    (tmp_path / "store").write_text("not a folder")
    with pytest.raises(StoreError, match="not a folder"):
        Store(tmp_path / "store").resolve(request())
    with pytest.raises(StoreError):
        build(Store(tmp_path / "store", writable=True))


def test_a_root_that_can_never_be_made_is_a_store_error() -> None:
    """A mkdir that says "no such file" although the parent is there must not be tried for ever."""
    with pytest.raises(StoreError, match="/proc/tkc"):
        Store(Path("/proc/tkc"), writable=True).require_writable()
    with pytest.raises(StoreError, match="/proc/tkc"):
        build(Store(Path("/proc/tkc"), writable=True))


# Portability (C1, D2)


def test_a_store_hits_after_it_was_moved_and_holds_no_path(store: Store, tmp_path: Path) -> None:
    build(store)
    moved = Store(store.root.rename(tmp_path / "elsewhere"))
    assert moved.resolve(request())
    for name, data in tree(moved.root).items():
        assert str(tmp_path).encode() not in data, name


def test_file_times_mean_nothing(store: Store) -> None:
    build(store)
    for path in store.root.rglob("*"):
        os.utime(path, (0, 0))
    assert store.resolve(request())


def test_a_lookup_reads_the_same_files_in_a_store_of_any_size(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    """No listing: as many system calls among 200 entries as alone."""
    build(store)
    opened: list[str] = []
    real = os.open
    monkeypatch.setattr(
        os, "open", lambda path, *rest, **more: (opened.append(str(path)), real(path, *rest, **more))[1]
    )
    assert store.resolve(request())
    alone = list(opened)
    for number in range(200):
        build(store, f"other {number}")
    opened.clear()
    monkeypatch.setattr(os, "scandir", raising(OSError(5, "a lookup lists no folder")))
    monkeypatch.setattr(os, "listdir", raising(OSError(5, "a lookup lists no folder")))
    assert store.resolve(request())
    assert opened == alone and len(alone) == 4
