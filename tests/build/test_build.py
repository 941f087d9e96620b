"""Builds in real worker processes: what one compile does cannot hurt the others, and nothing is lost."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path

import pytest

from tkc.build import Outcome, Status, build, compile_one, plan, planned
from tkc.cache import Hit, Store
from tkc.compiler import Unit
from tkc.errors import CompileError
from tkc.model import Host, Target
from tkc.registry import Catalog

from .conftest import PACKAGE


@pytest.fixture
def store(tmp_path: Path) -> Store:
    return Store(tmp_path / "store", writable=True)


def _unit(catalog: Catalog, name: str, factor: int = 2) -> Unit:
    entry = catalog.find(f"demo.{name}")
    return Unit(entry, entry.spec.bind(factor=factor), Target.parse("cpu"), Host.this_machine())


def _build(catalog: Catalog, store: Store, names: Sequence[str], timeout_s: float = 120) -> dict[str, Outcome]:
    units = [_unit(catalog, name) for name in names]
    outcomes = build(plan(units, store), store, jobs=2, timeout_s=timeout_s)
    return {outcome.planned.unit.entry.spec.kernel: outcome for outcome in outcomes}


def test_built_then_hit_and_the_ref_answers_the_request(catalog: Catalog, store: Store) -> None:
    assert _build(catalog, store, ["good"])["good"].status is Status.BUILT
    again = _build(catalog, store, ["good"])["good"]
    assert again.status is Status.HIT
    found = store.resolve(again.planned.request.key)
    assert isinstance(found, Hit) and found.manifest.key == again.planned.action.key


def test_failing_compile_lets_the_others_go_on_and_keeps_its_log(catalog: Catalog, store: Store) -> None:
    outcomes = _build(catalog, store, ["raises", "good", "chatty"])
    assert outcomes["good"].status is outcomes["chatty"].status is Status.BUILT
    failed = outcomes["raises"]
    assert failed.status is Status.FAILED and "this kernel cannot be traced" in failed.error
    assert failed.log_path is not None and "this kernel cannot be traced" in failed.log_path.read_text()


def test_worker_that_crashes_is_replaced_and_named_with_its_signal(catalog: Catalog, store: Store) -> None:
    outcomes = _build(catalog, store, ["crashes", "good"])
    assert outcomes["good"].status is Status.BUILT
    assert outcomes["crashes"].status is Status.FAILED and "SIGSEGV" in outcomes["crashes"].error


def test_worker_that_crashes_once_is_given_a_second_try(
    catalog: Catalog, store: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TKC_TEST_ONCE", str(tmp_path / "once"))
    assert _build(catalog, store, ["crashes_once"])["crashes_once"].status is Status.BUILT
    assert (tmp_path / "once").exists()


@pytest.mark.level1
def test_compile_that_hangs_is_killed_at_the_time_limit(catalog: Catalog, store: Store) -> None:
    outcomes = _build(catalog, store, ["hangs", "good"], timeout_s=20)
    assert outcomes["good"].status is Status.BUILT
    assert "longer than 20 s" in outcomes["hangs"].error


def test_edited_source_misses_and_is_built_again(catalog: Catalog, store: Store) -> None:
    first = _build(catalog, store, ["good"])["good"]
    variant = catalog.find("demo.good").folder / "cpu.py"
    variant.write_text(variant.read_text().replace("x[i] * ", "x[i] + "))
    second = _build(catalog, store, ["good"])["good"]
    assert second.status is Status.BUILT
    assert second.planned.request.key != first.planned.request.key


def test_comment_in_the_source_reaches_no_compiler(catalog: Catalog, store: Store) -> None:
    """D2: an unchanged device source is never compiled again, only lowered."""
    _build(catalog, store, ["good"])
    variant = catalog.find("demo.good").folder / "cpu.py"
    variant.write_text(variant.read_text() + "\n# a comment\n")
    stages: list[str] = []
    unit = _unit(catalog, "good")
    list(build(plan([unit], store), store, jobs=1, on_event=lambda item, message: stages.append(message.get("stage"))))
    assert stages == ["lower"]


def test_compile_one_raises_with_the_workers_words(catalog: Catalog, store: Store) -> None:
    with pytest.raises(CompileError, match="this kernel cannot be traced"):
        compile_one(_unit(catalog, "raises"), store)


_MISS = """
import sys
from pathlib import Path
from tkc.build import compile_one
from tkc.cache import Store
from tkc.compiler import Unit
from tkc.model import Host, Target
from tkc.registry import load_catalog
entry = load_catalog("misbehaving_kernels").find("demo.slow")
stages = []
unit = Unit(entry, entry.spec.bind(factor=2), Target.parse("cpu"), Host.this_machine())
print("ready", flush=True); sys.stdin.readline()
compile_one(unit, Store(Path(sys.argv[1]), writable=True), announce=stages.append)
print("lowered" if "lower" in stages else "waited", flush=True)
"""


@pytest.mark.level1
def test_eight_processes_that_miss_at_once_compile_once(catalog: Catalog, store: Store, tmp_path: Path) -> None:
    processes = [
        subprocess.Popen(
            [sys.executable, "-c", _MISS, str(store.root)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env={**os.environ, "PYTHONPATH": str(tmp_path / "packages")},
        )
        for _ in range(8)
    ]
    for process in processes:
        assert process.stdout is not None and process.stdout.readline() == "ready\n"
    for process in processes:
        assert process.stdin is not None
        process.stdin.write("go\n")
        process.stdin.flush()
    said = [process.communicate()[0].strip() for process in processes]
    assert sorted(said) == ["lowered"] + ["waited"] * 7


def _cli(store: Store, tmp_path: Path, *arguments: str) -> subprocess.Popen[str]:
    script = f"import tkc.registry as r; f = r.load_catalog; r.load_catalog = lambda *p: f(*(p or ({PACKAGE!r},)));"
    return subprocess.Popen(
        [sys.executable, "-c", f"{script} from tkc.cli import main; main()", "build", *arguments],
        env={
            **os.environ,
            "PYTHONPATH": str(tmp_path / "packages"),
            "TKC_CACHE_DIR": str(store.root),
        },
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )


@pytest.mark.level1
@pytest.mark.parametrize("how", [signal.SIGINT, signal.SIGKILL])
def test_stopped_build_leaves_no_worker_and_a_store_that_goes_on(
    catalog: Catalog, store: Store, tmp_path: Path, how: signal.Signals
) -> None:
    process = _cli(store, tmp_path, "demo.good", "demo.hangs", "--target", "cpu", "--grid", "smoke", "-j", "2")
    assert process.stdout is not None
    assert process.stdout.readline().startswith("built")  # one is done, others run
    workers = _children(process.pid)
    assert workers
    process.send_signal(how)
    status = process.wait(timeout=30)
    assert status == (130 if how is signal.SIGINT else -signal.SIGKILL)
    deadline = time.monotonic() + 30
    while any(_alive(worker) for worker in workers) and time.monotonic() < deadline:
        time.sleep(0.05)
    assert not any(_alive(worker) for worker in workers)
    assert _build(catalog, store, ["good"])["good"].status is Status.HIT or _all_whole(store)


def test_exit_code_is_1_if_any_failed_and_the_rest_is_there(catalog: Catalog, store: Store, tmp_path: Path) -> None:
    process = _cli(store, tmp_path, "demo.good", "demo.raises", "--target", "cpu", "--grid", "smoke")
    _, err = process.communicate()
    assert process.returncode == 1, err
    assert "this kernel cannot be traced" in err and "2 built, 2 failed" in err
    assert store.resolve(planned(_unit(catalog, "good"), store).request.key)


def _all_whole(store: Store) -> bool:
    return all(map(store.lookup, store.keys()))


def _children(pid: int) -> list[int]:
    text = Path(f"/proc/{pid}/task/{pid}/children").read_text()
    tasks = Path(f"/proc/{pid}/task").iterdir()
    return [int(child) for task in tasks for child in (task / "children").read_text().split()] or [
        int(child) for child in text.split()
    ]


def _alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False
