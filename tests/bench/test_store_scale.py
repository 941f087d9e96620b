"""A store of 10 000 artifacts: what a lookup and `tkc cache usage` cost there."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from cache_tools.usage import usage
from tests.cache_tools.helpers import request_of
from tkc.cache import Store
from tkc.cache.layout import Layout
from tkc.cache.sealed import seal
from tkc.model import Action, Digest, FileEntry, Manifest, Stage, manifest_of

ARTIFACTS = 10_000


def best_of_rounds(calls: list[Callable[[], object]], *, repeats: int, rounds: int = 5) -> list[float]:
    """The least time of one call of each, in seconds, measured in turns so that noise meets all of them."""
    best = [float("inf")] * len(calls)
    for _ in range(rounds):
        for index, call in enumerate(calls):
            started = time.perf_counter()
            for _ in range(repeats):
                call()
            best[index] = min(best[index], (time.perf_counter() - started) / repeats)
    return best


def fill(root: Path, count: int) -> Store:
    """The files that `count` builds leave, written without the care that a build takes."""
    layout = Layout(root)
    for number in range(count):
        library = f"library {number}\n".encode() * 40
        action = Action(Stage.COMPILE, {"spec": "moe.topk_gate", "target": {"name": "sm90"}, "number": number})
        file = FileEntry("kernel.so", Digest.of_bytes(library), len(library))
        kernels = [{"symbol": f"k{index}", "registers": 64, "args": ["x"] * 8} for index in range(2)]
        manifest: Manifest = manifest_of(action, (file,), facts={"kernels": kernels})
        request = request_of(f"kernel{number}")
        ref = {"schema": "tkc.ref/1", "request": request.key, "key": manifest.key, "fields": request.fields()}
        for path, data in (
            (layout.blob(file.digest), library),
            (layout.action(manifest.key), seal(manifest.to_bytes())),
            (layout.ref(request.key), seal(json.dumps(ref, default=str).encode())),
        ):
            Path(path).parent.mkdir(parents=True, exist_ok=True)
            Path(path).write_bytes(data)
    return Store(root)


@pytest.fixture(scope="module")
def stores(tmp_path_factory: pytest.TempPathFactory) -> tuple[Store, Store]:
    folder = tmp_path_factory.mktemp("scale")
    return fill(folder / "small", 100), fill(folder / "large", ARTIFACTS)


def test_a_lookup_costs_the_same_in_a_store_of_any_size(
    stores: tuple[Store, Store], record: Callable[..., None]
) -> None:
    small, large = stores
    request = request_of("kernel7").key
    assert small.resolve(request) and large.resolve(request)
    times = best_of_rounds([lambda: small.resolve(request), lambda: large.resolve(request)], repeats=200)
    record(
        f"lookup among {ARTIFACTS} artifacts",
        ours=times[1] * 1e6,
        theirs=times[0] * 1e6,
        unit="us",
        against="the same lookup among 100",
        bar=1.25,
    )


def test_usage_of_a_large_store(stores: tuple[Store, Store], record: Callable[..., None]) -> None:
    _, large = stores
    found = usage(large, now_s=time.time())
    assert (found.artifacts, found.refs, found.damaged) == (ARTIFACTS, ARTIFACTS, 0)
    ours, theirs = best_of_rounds([lambda: usage(large, now_s=0.0), lambda: read_all(large.root)], repeats=1)
    record(
        f"usage of {ARTIFACTS} artifacts",
        ours=ours,
        theirs=theirs,
        unit="s",
        against="reading and parsing every record, unverified",
        bar=3.0,
        limit_s=2.0,
    )


def read_all(root: Path) -> list[Any]:
    """What any tool must do at least to group artifacts by what their records say, and to sum up sizes."""
    found: list[Any] = []
    for folder, _, names in os.walk(root):
        for name in names:
            path = Path(folder) / name
            if name.endswith(".json"):
                found.append(json.loads(path.read_bytes().split(b"\n", 1)[0]))
            else:
                found.append(path.stat().st_blocks)
    return found
