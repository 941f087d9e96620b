"""A store is code: whose is it, and who else can write it? Permissions are real; root drops its own first."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.cache.helpers import NOBODY, ROOT_RUNS_THIS, action, build, in_child, library, request
from tkc.cache import Hit, Layers, Miss, Store
from tkc.cache.trust import Trust
from tkc.errors import StoreError, StoreReadOnlyError
from tkc.model import Digest


def as_another_user(function: Callable[[], Any]) -> Any:
    """Run `function` as a user that owns nothing here; where we are not root, by pretending to be one."""
    if ROOT_RUNS_THIS:
        return in_child(function, uid=NOBODY)

    def pretend() -> Any:
        os.geteuid = lambda: os.getuid() + 1
        return function()

    return in_child(pretend)


def as_ordinary_user(function: Callable[[], Any]) -> Any:
    """Run `function` under a user whom permissions bind."""
    return in_child(function, uid=NOBODY if ROOT_RUNS_THIS else None)


def give_to(uid: int, root: Path) -> None:
    for path in (root, *root.rglob("*")):
        os.chown(path, uid, uid)


def owned_by_someone_else(root: Path) -> Callable[[Callable[[], Any]], Any]:
    """Build a store at `root` that is someone else's for whoever runs what is passed to the result."""
    build(Store(root, writable=True))
    if ROOT_RUNS_THIS:
        give_to(NOBODY, root)
        return in_child
    return as_another_user


def test_a_store_of_another_user_is_not_loaded_from_and_the_error_says_whose_and_what_to_run(
    open_folder: Path,
) -> None:
    root = open_folder / "store"
    run = owned_by_someone_else(root)
    owner = root.stat().st_uid
    for ask in (
        lambda: Store(root).resolve(request()),
        lambda: Store(root).lookup(action().key),
        lambda: list(Store(root).refs()),
    ):
        with pytest.raises(StoreError) as caught:
            run(ask)
        text = str(caught.value)
        assert f"uid {owner}" in text and "chown -R" in text and str(root) in text
    with pytest.raises(StoreError, match="chown"):
        run(lambda: Store(root).describe())


def test_a_store_of_another_user_is_not_written_to_either(open_folder: Path) -> None:
    root = open_folder / "store"
    run = owned_by_someone_else(root)
    with pytest.raises(StoreError):
        run(lambda: build(Store(root, writable=True)))


def test_a_store_of_root_is_fine_for_everybody(open_folder: Path) -> None:
    root = open_folder / "store"
    build(Store(root, writable=True))
    if not ROOT_RUNS_THIS:
        assert Store(root).resolve(request()), "the user's own"
        assert Store(Path("/etc")).describe(), "root's"
        return
    assert in_child(lambda: bool(Store(root).resolve(request())), uid=NOBODY)


@pytest.mark.parametrize("folder", [".", "blobs-v1", "actions-v1", "refs-v1"])
@pytest.mark.parametrize("mode", [0o775, 0o757, 0o777])
def test_a_folder_that_others_can_write_is_refused_and_the_error_says_what_to_run(
    store: Store, folder: str, mode: int
) -> None:
    build(store)
    (store.root / folder).chmod(mode)
    with pytest.raises(StoreError, match="chmod -R go-w") as caught:
        Store(store.root).resolve(request())
    assert f"{mode:04o}" in str(caught.value)
    (store.root / folder).chmod(0o755)
    assert Store(store.root).resolve(request())


@pytest.mark.parametrize("kind", ["blobs", "actions", "refs"])
def test_an_entry_that_others_can_write_is_a_miss_and_a_build_replaces_it(store: Store, kind: str) -> None:
    build(store)
    paths = list(store.root.glob(f"{kind}-v1/*/*"))
    for path in paths:
        path.chmod(0o464)
    found = store.resolve(request())
    assert isinstance(found, Miss) and "writable by group or others" in found.reason
    build(store)
    assert store.resolve(request())
    assert all(path.stat().st_mode & 0o022 == 0 for path in paths)


@pytest.mark.parametrize(
    ("owner", "mode", "wrong"),
    [
        (os.geteuid(), 0o444, None),
        (0, 0o444, None),
        (0, 0o644, None),
        (os.geteuid() + 1, 0o444, f"belongs to uid {os.geteuid() + 1}"),
        (os.geteuid(), 0o464, "writable by group or others (mode 0464)"),
        (0, 0o446, "writable by group or others (mode 0446)"),
    ],
)
def test_an_entry_is_judged_by_its_owner_and_mode(owner: int, mode: int, wrong: str | None) -> None:
    status = os.stat_result((0o100000 | mode, 1, 1, 1, owner, owner, 0, 0, 0, 0))
    complaint = Trust("/store").complaint(status)
    assert complaint is None if wrong is None else wrong in str(complaint)
    assert Trust("/store", trusted=True).complaint(status) is None


@pytest.mark.skipif(not ROOT_RUNS_THIS, reason="only root can make a file that belongs to another user")
def test_an_entry_planted_in_a_sticky_folder_is_refused(open_folder: Path) -> None:
    """Anyone may add names to a sticky folder; what they add is theirs, and nobody else's."""
    root = open_folder / "store"
    store = Store(root, writable=True)
    manifest = build(store)
    blob = store.blob_path(manifest.file("kernel.so").digest)
    blob.unlink()
    for folder in (root, root / "blobs-v1", blob.parent):
        folder.chmod(0o1777)

    def plant() -> None:
        blob.write_bytes(library())
        blob.chmod(0o444)

    in_child(plant, uid=NOBODY)
    found = Store(root).resolve(request())
    assert isinstance(found, Miss)
    assert f"belongs to uid {NOBODY}" in found.reason


def test_a_store_inside_an_installed_package_is_trusted_whoever_owns_it(open_folder: Path) -> None:
    root = open_folder / "store"
    run = owned_by_someone_else(root)
    for path in root.rglob("*"):
        path.chmod(path.stat().st_mode | 0o020)
    assert run(lambda: bool(Store(root, trusted=True).resolve(request())))


def test_an_untrusted_layer_stops_nobody_and_its_reason_is_kept(open_folder: Path) -> None:
    build(Store(open_folder / "bad", writable=True))
    (open_folder / "bad").chmod(0o777)
    build(Store(open_folder / "good", writable=True))
    layers = Layers([Store(open_folder / "bad"), Store(open_folder / "good")])
    found = layers.resolve(request())
    assert isinstance(found, Hit) and found.store.root == open_folder / "good"
    assert "chmod -R go-w" in found.skipped[0] and "chmod -R go-w" in layers.reasons[0]
    (open_folder / "bad").chmod(0o755)
    assert layers.resolve(request()).store.root == open_folder / "bad"
    assert layers.reasons == ()


def test_a_read_only_folder_takes_no_writes_and_serves_reads(open_folder: Path) -> None:
    root = open_folder / "store"
    build(Store(root, writable=True))
    for path in (root, *root.rglob("*")):
        if path.is_dir():
            path.chmod(0o555)
    try:

        def use() -> list[str]:
            store = Store(root, writable=True)
            assert store.resolve(request())
            errors = []
            for write in (
                store.require_writable,
                lambda: build(store, "two"),
                lambda: store.write_ref(request("two"), {}, action().key),
                lambda: store.keep_log(action().key, "log"),
            ):
                with pytest.raises(StoreReadOnlyError) as caught:
                    write()
                errors.append(str(caught.value))
            with store.lock(action("two").key) as held:
                assert not held
            assert not store.miss_log.append({"spec": "x"})
            return errors

        errors = as_ordinary_user(use)
    finally:
        for path in (root, *root.rglob("*")):
            if path.is_dir():
                path.chmod(0o755)
    assert len(errors) == 4 and all("TKC_CACHE_DIR" in error for error in errors)


def test_damage_in_a_folder_that_cannot_be_written_is_reported(open_folder: Path) -> None:
    root = open_folder / "store"
    store = Store(root, writable=True)
    blob = store.blob_path(build(store).file("kernel.so").digest)
    blob.chmod(0o644)
    blob.write_bytes(b"damaged")
    blob.chmod(0o444)
    for path in (root, *root.rglob("*")):
        if path.is_dir():
            path.chmod(0o555)
    try:
        found = as_ordinary_user(lambda: Store(root, writable=True).resolve(request()))
    finally:
        for path in (root, *root.rglob("*")):
            if path.is_dir():
                path.chmod(0o755)
    assert isinstance(found, Miss) and found.damaged
    assert blob.read_bytes() == b"damaged"


def test_a_root_that_cannot_be_entered_is_a_store_error(open_folder: Path) -> None:
    root = open_folder / "closed" / "store"
    build(Store(root, writable=True))
    (open_folder / "closed").chmod(0o000)
    try:
        with pytest.raises(StoreError, match="cannot be examined"):
            as_ordinary_user(lambda: Store(root).lookup(Digest("ab" * 32)))
    finally:
        (open_folder / "closed").chmod(0o755)
