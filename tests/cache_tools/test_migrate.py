from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from cache_tools.migrate import migrate
from tests.cache.helpers import tree
from tests.cache_tools.conftest import Said
from tests.cache_tools.helpers import make, request_of
from tkc.cache import Store
from tkc.errors import StoreError


def test_a_store_elsewhere_is_taken_over_and_left_as_it_is(
    store: Store, tmp_path: Path, cache: Callable[..., Said]
) -> None:
    old = Store(tmp_path / "old", writable=True)
    make(old, "one"), make(old, "two", target="sm90")
    before = tree(old.root)
    assert cache("migrate", str(old.root), "--target", "sm90", "--json").json["refs"] == 1
    assert migrate(old.root, store).refs == 2
    assert store.resolve(request_of("one").key) and tree(old.root) == before


def test_a_version_that_this_tkc_does_not_know_is_named(store: Store, tmp_path: Path) -> None:
    make(Store(tmp_path / "new", writable=True), "one")
    (tmp_path / "new" / "actions-v1").rename(tmp_path / "new" / "actions-v7")
    with pytest.raises(StoreError, match=r"\(1, 7, 1\)"):
        migrate(tmp_path / "new", store)


def test_a_folder_without_a_store_and_the_store_itself_are_refused(store: Store, tmp_path: Path) -> None:
    make(store, "one")
    (tmp_path / "empty").mkdir()
    with pytest.raises(StoreError, match="holds no store"):
        migrate(tmp_path / "empty", store)
    with pytest.raises(StoreError, match="the store itself"):
        migrate(store.root, store)
