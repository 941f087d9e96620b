"""What a job missed becomes an artifact that the next job hits."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from click import UsageError
from click.testing import CliRunner

from tests.cache_tools.helpers import request_of
from tkc.cache import Hit, Store
from tkc.cli import cli
from tkc.errors import TkcError
from tkc.model import Host, Request, Target
from tkc.registry import find_entry


def requests() -> Iterator[Request]:
    """Two real kernels as the runtime asks for them, and one that the catalogue has no more."""
    for name, params in (
        ("moe.topk_gate", {"num_experts": 64, "num_topk": 6}),
        ("moe.normalize_weight", {"num_topk": 6}),
    ):
        entry, target = find_entry(name), Target.parse("cpu")
        source = entry.source_digest(target.backend)
        yield Request(entry.spec.bind(**params), source, target.name, Host.this_machine().arch)
    yield request_of("gone", spec="moe.gone")


def build(*words: str) -> Any:
    done = CliRunner().invoke(cli, ["build", *words, "--json"], standalone_mode=False)
    if done.exception:
        raise done.exception
    return done


@pytest.fixture
def log(store: Store) -> Path:
    for request in requests():
        for machine in ("a", "b"):
            store.miss_log.append({**request.fields(), "machine": machine, "cost_s": 3})
    return store.miss_log.path


@pytest.mark.level1
def test_what_was_missed_is_built_and_then_hit(store: Store, log: Path) -> None:
    done = build("--from-misses", str(log))
    report = json.loads(done.stdout)
    assert (report["built"], report["failed"]) == (2, 0)
    assert "left out: tkc build moe.gone name=gone" in done.stderr
    for request in list(requests())[:2]:
        assert isinstance(store.resolve(request.key), Hit)
    assert json.loads(build("--from-misses", str(log)).stdout)["hit"] == 2


def test_names_narrow_what_is_built(log: Path) -> None:
    rows = json.loads(build("moe.topk_gate", "--from-misses", str(log), "--dry-run").stdout)["plan"]
    assert [row["artifact"].split()[0] for row in rows] == ["moe.topk_gate"]


def test_what_is_no_miss_log_and_what_contradicts_it_is_refused(log: Path, tmp_path: Path) -> None:
    (tmp_path / "notes").write_text("hello\n")
    with pytest.raises(TkcError, match="is no miss log"):
        build("--from-misses", str(tmp_path / "notes"))
    with pytest.raises(UsageError):
        build("--from-misses", str(log), "--target", "cpu")
