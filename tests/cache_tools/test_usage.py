"""usage counts what is there; misses turn what was not there into commands."""

from __future__ import annotations

import json
import shlex
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from cache_tools.misses import clear, misses, wanted_in
from cache_tools.usage import usage
from tests.cache.helpers import tree
from tests.cache_tools.conftest import Said
from tests.cache_tools.helpers import DAY, age, library, make, manifest_path, overwrite, request_of
from tkc.cache import Store
from tkc.errors import TkcError


def test_counts_and_bytes_by_target_family_toolchain_and_age(store: Store) -> None:
    make(store, "one", target="sm90")
    make(store, "two")
    make(store, "three", spec="quant.cast", tilelang="0.1.14")
    age(store, 2 * DAY, "two")
    found = usage(Store(store.root), now_s=time.time())
    assert (found.artifacts, found.stages, found.refs, found.blobs, found.damaged) == (3, 9, 3, 9, 0)
    assert found.blob_bytes == sum(path.stat().st_size for path in store.root.glob("blobs-v1/*/*"))
    assert {name: count for name, (count, _) in found.by_target.items()} == {"cpu": 2, "sm90": 1}
    assert found.by_family["quant"] == (1, len(library("three cpu")))
    assert found.by_toolchain.keys() == {"tilelang 0.1.14", "tilelang 0.1.15"}
    assert {name: count for name, (count, _) in found.by_age.items()} == {"within a day": 2, "within a week": 1}
    assert found.unreachable_bytes == 0
    store.remove_ref(request_of("two").key)
    assert usage(store, now_s=time.time()).unreachable_bytes > 0


def test_damaged_entries_are_counted_and_the_store_is_left_as_it_is(store: Store, cache: Callable[..., Said]) -> None:
    overwrite(manifest_path(store, make(store, "one").key), b"junk")
    before = tree(store.root)
    said = cache("usage", "--json")
    assert said.code == 1 and said.json["damaged"] == 1
    assert tree(store.root) == before


def test_a_store_that_is_not_there_is_empty_and_stays_so(tmp_path: Path, cache: Callable[..., Said]) -> None:
    said = cache("usage", "--store", str(tmp_path / "none"))
    assert said.code == 0 and "0 artifacts" in said.out
    assert not (tmp_path / "none").exists()


# Misses


def miss(store: Store, name: str, **more: object) -> None:
    assert store.miss_log.append({**request_of(name).fields(), "cost_s": 4, "reasons": ["not there"], **more})


def test_misses_are_summed_up_by_artifact_the_most_frequent_first(store: Store) -> None:
    miss(store, "one", machine="a")
    for machine in ("a", "b", "b"):
        miss(store, "two", machine=machine)
    found = misses(store.miss_log)
    assert [(one.specialization["name"], one.count, one.cost_s) for one in found.wanted] == [
        ("two", 3, 12.0),
        ("one", 1, 4.0),
    ]
    assert found.wanted[0].command == "tkc build moe.topk_gate name=two --target cpu --host x86_64"


def test_lines_that_are_no_miss_are_counted_and_skipped(store: Store) -> None:
    miss(store, "one")
    for odd in ({"spec": "moe.topk_gate"}, {**request_of("x").fields(), "specialization": {"name": {"deep": 1}}}):
        store.miss_log.append(odd)
    with store.miss_log.path.open("ab") as log:
        log.write(b'{"torn\n')
    found = misses(store.miss_log)
    assert len(found.wanted) == 1 and found.damaged_lines == 3


def test_a_command_of_a_hostile_log_is_quoted_for_the_shell(store: Store) -> None:
    """It is printed to be pasted, and a log may come from any node."""
    fields = {**request_of("x; touch /tmp/owned").fields(), "spec": "moe.$(id)"}
    store.miss_log.append({**fields, "cost_s": 10**400})
    (wanted,) = misses(store.miss_log).wanted
    assert shlex.split(wanted.command)[:4] == ["tkc", "build", "moe.$(id)", "name=x; touch /tmp/owned"]
    assert wanted.cost_s == 0.0


def test_a_file_that_is_no_miss_log_is_an_error_and_an_empty_one_is_not(tmp_path: Path) -> None:
    path = tmp_path / "log"
    path.write_text("hello\n")
    with pytest.raises(TkcError, match="is no miss log"):
        wanted_in(path)
    path.write_text("")
    assert list(wanted_in(path)) == []


def test_the_command_lists_and_clears(store: Store, cache: Callable[..., Said]) -> None:
    miss(store, "one")
    (listed,) = cache("misses", "--json").json["misses"]
    assert listed["command"].startswith("tkc build moe.topk_gate name=one") and listed["count"] == 1
    assert cache("misses", "--clear", "--dry-run").out.count("tkc build") == 1
    assert cache("misses", "--clear").out.count("tkc build") == 1
    assert cache("misses").out == ""
    assert clear(store.miss_log) == 0
    assert json.loads(cache("dir", "--json").out)["exists"]
