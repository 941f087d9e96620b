"""prune chooses, rm removes, pin protects: each says what it would do, and does no more."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from cache_tools.gc import gc
from cache_tools.prune import Policy, prune
from cache_tools.rm import pin, rm, unpin
from cache_tools.selection import Selection
from cache_tools.units import parse_age, parse_size
from tests.cache.helpers import tree
from tests.cache_tools.conftest import Said
from tests.cache_tools.helpers import DAY, HOUR, age, make, request_of
from tkc.cache import Store
from tkc.errors import StoreError, TkcError
from tkc.model import Digest, Stage


def names_in(store: Store) -> list[str]:
    return sorted(ref.fields["specialization"]["name"] for ref in store.refs())


@pytest.fixture
def three(store: Store) -> Store:
    """Used 40, 20 and 0 days ago."""
    for name in ("old", "older", "new"):
        make(store, name)
    age(store, 20 * DAY, "old")
    age(store, 40 * DAY, "older")
    return store


def reachable_bytes(store: Store) -> int:
    return prune(store, Policy(unused_s=1e9), dry_run=True).kept_bytes


def test_what_has_not_been_used_goes_the_least_recently_used_first(three: Store) -> None:
    plan = prune(three, Policy(unused_s=10 * DAY))
    assert [one.ref.fields["specialization"]["name"] for one in plan.dropped] == ["older", "old"]
    assert [one.reason for one in plan.dropped] == ["not used for 40 d", "not used for 20 d"]
    assert names_in(three) == ["new"] and plan.kept == 1


def test_a_size_limit_drops_no_more_than_it_must(three: Store) -> None:
    limit = reachable_bytes(three) - 1
    plan = prune(three, Policy(max_bytes=limit))
    assert names_in(three) == ["new", "old"]
    assert plan.kept_bytes <= limit and plan.freed_bytes > 0
    assert plan.kept_bytes == reachable_bytes(three)


def test_what_was_used_lately_stays_whatever_the_size(three: Store) -> None:
    prune(three, Policy(max_bytes=0, keep_used_s=30 * DAY))
    assert names_in(three) == ["new", "old"]


def test_blobs_that_artifacts_share_count_once(store: Store) -> None:
    for name in ("one", "two"):
        make(store, name, library_bytes=b"same" * 5000)
    both = reachable_bytes(store)
    plan = prune(store, Policy(Selection(specs=("moe",)), max_bytes=both - 4096), dry_run=True)
    assert len(plan.dropped) == 1 and plan.freed_bytes < 20000


def test_a_load_counts_as_a_use(three: Store) -> None:
    assert three.resolve(request_of("older").key)
    prune(three, Policy(unused_s=10 * DAY))
    assert names_in(three) == ["new", "older"]


def test_pinned_artifacts_stay_and_are_counted(three: Store) -> None:
    key = three.read_ref(request_of("older").key)
    assert key
    pin(three, Selection(keys=(key.hex[:12],)), note="release")
    plan = prune(three, Policy(max_bytes=0))
    assert names_in(three) == ["older"] and plan.pinned == 1
    age(three, 50 * DAY)
    gc(three)
    assert three.resolve(request_of("older").key)
    assert unpin(three, Selection(keys=(str(key),))) == (key,)
    prune(three, Policy(max_bytes=0))
    assert names_in(three) == []


def test_pinning_what_is_not_there_is_an_error(store: Store) -> None:
    with pytest.raises(TkcError, match="no artifact in the store matches"):
        pin(store, Selection(specs=("moe",)))


@pytest.mark.parametrize(
    ("selection", "left"),
    [
        (Selection(specs=("moe",)), ["cast"]),
        (Selection(specs=("moe.topk_gate",), targets=("sm90",)), ["cast", "cpu"]),
        (Selection(targets=("sm90", "cpu")), []),
        (Selection(hosts=("aarch64",)), ["cast", "cpu"]),
        (Selection(toolchains=("tilelang=0.1.14",)), ["cpu", "gate"]),
        (Selection(toolchains=(str(Digest.of_bytes(b"0.1.14"))[:20],)), ["cpu", "gate"]),
        (Selection(toolchains=("tilelang",)), []),
        (Selection(toolchains=("nvcc",)), ["cast", "cpu", "gate"]),
        (Selection(keys=("0" * 64,)), ["cast", "cpu", "gate"]),
    ],
    ids=str,
)
def test_a_selection_is_all_that_is_considered(store: Store, selection: Selection, left: list[str]) -> None:
    make(store, "gate", target="sm90", host="aarch64")
    make(store, "cpu")
    make(store, "cast", spec="quant.cast", target="sm90", tilelang="0.1.14")
    prune(store, Policy(selection))
    assert names_in(store) == left


def test_stages_go_alone_and_their_artifacts_stay(store: Store) -> None:
    manifest = make(store, "one")
    age(store, DAY)
    plan = prune(store, Policy(stages=True))
    assert len(plan.stages) == 3 and not plan.dropped and plan.freed_bytes > 0
    assert [one.stage for one in store.iter_manifests() if one] == [Stage.COMPILE]
    assert gc(store).blobs == 2
    assert store.lookup(manifest.key) and store.resolve(request_of("one").key)
    assert make(store, "one") == manifest


def test_stages_that_a_build_may_be_using_stay(store: Store) -> None:
    make(store, "one")
    age(store, HOUR)
    prune(store, Policy(stages=True))
    assert len(list(store.keys())) == 4


def test_a_dry_run_changes_nothing_and_needs_no_writable_store(three: Store) -> None:
    before = tree(three.root)
    planned = prune(Store(three.root), Policy(unused_s=10 * DAY), dry_run=True)
    assert tree(three.root) == before
    assert prune(three, Policy(unused_s=10 * DAY)) == planned


def test_a_ref_whose_manifest_is_gone_can_still_be_selected(store: Store) -> None:
    manifest = make(store, "one")
    store.remove_manifest(manifest.key)
    prune(store, Policy(Selection(specs=("moe.topk_gate",))))
    assert names_in(store) == []


# rm


def test_what_is_removed_is_never_hit_again_and_building_compiles_anew(store: Store) -> None:
    """sccache #639: a poisoned artifact must be removable, with the stages that would bring it back."""
    manifest, other = make(store, "one"), make(store, "two")
    removal = rm(store, Selection(keys=(manifest.key.hex,)))
    assert len(removal.manifests) == 4 and removal.refs == (request_of("one").key,)
    assert not store.resolve(request_of("one").key) and not store.lookup(manifest.key)
    assert not any(store.lookup(key) for key in removal.manifests)
    assert store.lookup(other.key) and store.lookup(other.inputs[0])


def test_a_stage_takes_with_it_what_was_made_from_it(store: Store) -> None:
    manifest = make(store, "one")
    linked = store.read_manifest(manifest.inputs[0])
    assert linked
    rm(store, Selection(keys=(linked.inputs[0].hex,)))
    assert not list(store.keys()) and not list(store.refs())


def test_everything_of_a_toolchain_goes(store: Store) -> None:
    make(store, "one", tilelang="0.1.14"), make(store, "two")
    rm(store, Selection(toolchains=("tilelang=0.1.14",)))
    assert names_in(store) == ["two"] and len(list(store.keys())) == 4


def test_nothing_is_removed_while_a_pin_is_among_it(store: Store) -> None:
    manifest = make(store, "one")
    store.pin(manifest.key)
    before = tree(store.root)
    with pytest.raises(StoreError, match="Unpin"):
        rm(store, Selection(specs=("moe",)))
    assert tree(store.root) == before


def test_removing_everything_must_be_said(store: Store) -> None:
    with pytest.raises(TkcError, match="nothing was selected"):
        rm(store, Selection())


# Words and commands


@pytest.mark.parametrize(("text", "size"), [("2GB", 2 * 10**9), ("1.5 MiB", 1572864), ("7", 7), ("3kb", 3000)])
def test_sizes(text: str, size: int) -> None:
    assert parse_size(text) == size


@pytest.mark.parametrize(("text", "seconds"), [("30d", 30 * DAY), ("12h", 12 * HOUR), ("1.5m", 90.0), ("2w", 14 * DAY)])
def test_ages(text: str, seconds: float) -> None:
    assert parse_age(text) == seconds


@pytest.mark.parametrize("text", ["", "GB", "-1GB", "1 XB", "1e3", "٣GB", "inf"])
def test_what_is_no_size_is_refused(text: str) -> None:
    with pytest.raises(TkcError, match="is no size"):
        parse_size(text)


@pytest.mark.parametrize("text", ["", "30", "d", "-1d", "1y", "nan"])
def test_what_is_no_age_is_refused(text: str) -> None:
    with pytest.raises(TkcError, match="is no age"):
        parse_age(text)


def test_the_commands_print_plans_and_obey_dry_run(three: Store, cache: Callable[..., Said]) -> None:
    planned = cache("prune", "--unused", "10d", "--dry-run", "--json").json
    assert [one["artifact"] for one in planned["dropped"]] == [
        "moe.topk_gate name=older --target cpu --host x86_64",
        "moe.topk_gate name=old --target cpu --host x86_64",
    ]
    assert len(names_in(three)) == 3
    said = cache("prune", "--max-size", "0B", "--keep-used", "30d")
    assert said.out.startswith("dropped moe.topk_gate name=older") and "2 kept" in said.err
    assert cache("pin", "moe", "--note", "release").out.count("pinned") == 2
    assert {one["note"] for one in cache("pin", "--json").json["pins"]} == {"release"}
    assert "pinned artifacts are selected" in cache("rm", "moe").err
    assert cache("pin", "--remove", "--dry-run").out.count("would be unpinned") == 2
    assert cache("pin", "--remove").out.count("unpinned") == 2
    assert len(cache("rm", "moe.topk_gate", "--dry-run", "--json").json["manifests"]) == 12
    assert names_in(three) == ["new", "old"]
    assert cache("rm", "moe.topk_gate").out.count("removed") == 2
    assert names_in(three) == []


def test_a_command_that_would_drop_everything_by_accident_is_a_usage_error(cache: Callable[..., Said]) -> None:
    from click import UsageError

    for words in (["prune"], ["rm"], ["prune", "--unused", "soon"], ["prune", "--max-size", "big"]):
        with pytest.raises(UsageError):
            cache(*words)
