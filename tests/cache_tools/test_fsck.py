"""fsck finds every kind of damage, restores what another layer has, and drops what it cannot restore."""

from __future__ import annotations

import errno
import os
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import pytest

from cache_tools.fsck import Kind, fsck
from tests.cache.helpers import tree
from tests.cache_tools.conftest import Said
from tests.cache_tools.helpers import library, make, manifest_path, overwrite, ref_path, request_of
from tests.cache_tools.servers import plain_http
from tkc.cache import Store, files
from tkc.errors import StoreReadOnlyError
from tkc.model import Digest, Manifest

Hurt = Callable[[Store, Manifest], object]


def blob_of(store: Store) -> Path:
    return store.blob_path(Digest.of_bytes(library("one cpu")))


HURTS: dict[str, tuple[Hurt, Kind]] = {
    "a blob with a flipped bit": (lambda s, m: flip(blob_of(s)), Kind.DAMAGED),
    "an empty blob": (lambda s, m: overwrite(blob_of(s), b""), Kind.DAMAGED),
    "a blob that is gone": (lambda s, m: blob_of(s).unlink(), Kind.DANGLING),
    "a manifest with a flipped bit": (lambda s, m: flip(manifest_path(s, m.key)), Kind.DAMAGED | Kind.DANGLING),
    "a manifest that is gone": (lambda s, m: manifest_path(s, m.key).unlink(), Kind.DANGLING),
    "a ref with a flipped bit": (lambda s, m: flip(ref_path(s, request_of("one").key)), Kind.DAMAGED),
    "a blob that others can write": (lambda s, m: blob_of(s).chmod(0o666), Kind.UNREADABLE),
    "a folder in place of a blob": (lambda s, m: (blob_of(s).unlink(), blob_of(s).mkdir()), Kind.UNREADABLE),
}
each_hurt = pytest.mark.parametrize(("hurt", "kind"), HURTS.values(), ids=list(HURTS))
RESTORABLE = {name: hurt for name, (hurt, _) in HURTS.items() if name != "a folder in place of a blob"}


def flip(path: Path) -> None:
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    overwrite(path, bytes(data))


def test_a_good_store_has_no_problems(store: Store) -> None:
    make(store, "one"), make(store, "two")
    report = fsck(Store(store.root))
    assert (report.blobs, report.manifests, report.refs) == (6, 8, 2)
    assert report.problems == () and report.exit_code == 0


def test_a_stage_that_was_pruned_is_no_problem(store: Store) -> None:
    manifest = make(store, "one")
    store.remove_manifest(manifest.inputs[0])
    assert fsck(store).problems == ()


@each_hurt
def test_a_check_names_the_kind_in_its_exit_code_and_changes_nothing(store: Store, hurt: Hurt, kind: Kind) -> None:
    hurt(store, make(store, "one"))
    make(store, "two")
    before = tree(store.root)
    report = fsck(Store(store.root))
    assert report.exit_code == kind
    assert tree(store.root) == before


@pytest.mark.parametrize("hurt", RESTORABLE.values(), ids=list(RESTORABLE))
def test_a_repair_restores_everything_from_another_layer(store: Store, tmp_path: Path, hurt: Hurt) -> None:
    manifest = make(store, "one")
    layer = Store(tmp_path / "layer", writable=True)
    make(layer, "one")
    hurt(store, manifest)
    report = fsck(store, repair_from={"empty": Store(tmp_path / "none"), "layer": Store(layer.root)})
    assert report.exit_code == 0 and {one.outcome for one in report.problems} <= {
        "restored from layer",
        "restored already",
    }
    assert fsck(store).problems == ()
    assert store.resolve(request_of("one").key) and store.lookup(manifest.key) == store.lookup(manifest.key)
    assert store.read_blob(Digest.of_bytes(library("one cpu"))) == library("one cpu")


@each_hurt
def test_a_repair_without_a_source_drops_what_is_lost_and_keeps_the_rest(store: Store, hurt: Hurt, kind: Kind) -> None:
    hurt(store, make(store, "one"))
    make(store, "two")
    report = fsck(store, repair_from={})
    assert report.exit_code == kind
    assert store.resolve(request_of("two").key)
    if kind is not Kind.UNREADABLE:
        assert fsck(store).problems == ()
    if not blob_of(store).is_dir():
        make(store, "one")
        assert store.resolve(request_of("one").key)


def test_a_damaged_source_restores_nothing(store: Store, tmp_path: Path) -> None:
    layer = Store(tmp_path / "layer", writable=True)
    for one in (store, layer):
        make(one, "one")
        flip(blob_of(one))
    report = fsck(store, repair_from={"layer": Store(layer.root)})
    assert report.exit_code == Kind.DAMAGED
    assert not store.resolve(request_of("one").key)


def test_a_pin_of_nothing_is_found_and_dropped(store: Store) -> None:
    manifest = make(store, "one")
    store.pin(manifest.key)
    store.remove_manifest(manifest.key)
    assert fsck(store).exit_code == Kind.DANGLING
    fsck(store, repair_from={})
    assert list(store.pins()) == [] and list(store.refs()) == []


def test_strays_are_listed_and_left_alone(store: Store) -> None:
    make(store, "one")
    strays = [store.root / "blobs-v1" / "core", store.root / "actions-v1" / "ab" / "notes.txt"]
    for path in strays:
        path.parent.mkdir(exist_ok=True)
        path.write_bytes(b"x")
    report = fsck(store, repair_from={})
    assert report.exit_code == Kind.STRAY and [one.kind for one in report.problems] == [Kind.STRAY] * 2
    assert all(path.exists() for path in strays)


def test_a_read_only_store_is_not_repaired(store: Store) -> None:
    make(store, "one")
    with pytest.raises(StoreReadOnlyError):
        fsck(Store(store.root), repair_from={})


def test_kinds_leave_the_code_of_a_usage_error_alone() -> None:
    assert all(kind & 2 == 0 for kind in Kind)


@pytest.mark.parametrize("code", [errno.EIO, errno.ESTALE, errno.EACCES], ids=errno.errorcode.get)
@pytest.mark.parametrize("bucket", ["actions-v1", "blobs-v1"])
def test_a_repair_drops_nothing_that_only_cannot_be_read_just_now(
    store: Store, monkeypatch: pytest.MonkeyPatch, code: int, bucket: str
) -> None:
    """A read that fails once, between the examination and the repair, cost a good ref."""
    make(store, "one"), make(store, "two")
    overwrite(store.blob_path(Digest.of_bytes(library("two cpu"))), b"junk")
    real, before = files.read, set(store.requests())
    seen: Counter[str] = Counter()

    def unreadable(path: str) -> tuple[bytes, os.stat_result]:
        seen[path] += 1
        if f"/{bucket}/" in path and seen[path] > 1:
            raise OSError(code, os.strerror(code), path)
        return real(path)

    with monkeypatch.context() as patch:
        patch.setattr(files, "read", unreadable)
        fsck(store, repair_from={})
    assert set(store.requests()) >= before - {request_of("two").key}
    assert store.resolve(request_of("one").key)


def test_the_command_reports_repairs_and_exits_by_kind(
    store: Store, cache: Callable[..., Said], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    make(store, "one")
    make(Store(tmp_path / "layer", writable=True), "one")
    flip(blob_of(store))
    said = cache("fsck", "--json")
    assert said.code == said.json["problems"][0]["kind"].count("DAMAGED") == 1
    monkeypatch.setenv("TKC_STORES", os.fspath(tmp_path / "layer"))
    assert "restored from" in cache("fsck", "--repair").out
    assert cache("fsck").code == 0
    blob_of(store).unlink()
    assert cache("fsck").code == Kind.DANGLING
    monkeypatch.delenv("TKC_STORES")
    with plain_http(tmp_path / "layer") as url:
        assert f"restored from {url}" in cache("fsck", "--repair", "--from", url).out
    assert cache("fsck").code == 0
