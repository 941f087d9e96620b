"""A fixed number of inputs for all that reads what a stranger wrote: no crash, no escape, bounded memory and time.

Each target runs in a process of its own, from a fixed seed. `TKC_TEST_LEVEL=2` runs twenty times as many inputs.
"""

from __future__ import annotations

import importlib.util
import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.conftest import LEVEL
from tests.wheel.conftest import cpu_store, wheel

__all__ = ["cpu_store", "wheel"]  # fixtures

RUNS = {
    "manifest": 2000,
    "ref": 1500,
    "records": 800,
    "store": 60,
    "bundle": 1000,
    "bundle_members": 250,
    "wheel": 300,
    "wheel_members": 50,
    "library": 80,
    "installed": 400,
}
MORE = 20
OF_WHEELS = ("wheel", "wheel_members", "library")
MAX_BYTES = 100_000

pytestmark = pytest.mark.skipif(
    importlib.util.find_spec("atheris") is None,
    reason="atheris is not installed: it is built for CPython 3.11 to 3.14 on x86_64 Linux alone",
)


def run(target: str, folder: Path, good: Path, runs: int, *options: str) -> subprocess.CompletedProcess[str]:
    limits = (f"-runs={runs}", "-seed=1", f"-max_len={MAX_BYTES}")
    words = [sys.executable, "-m", "tests.fuzz.run", target, str(folder), str(good), *limits, *options]
    return subprocess.run(words, capture_output=True, text=True, errors="replace", timeout=1800, check=False)


@pytest.mark.level1
@pytest.mark.parametrize("target", RUNS)
def test_any_input_is_read_or_refused_in_bounded_memory_and_changes_nothing_outside(
    target: str, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    good = request.getfixturevalue("wheel") if target in OF_WHEELS else tmp_path / "none.whl"
    runs = RUNS[target] * (MORE if LEVEL > 1 else 1)
    done = run(target, tmp_path / "fuzz", good, runs)
    left = [str(path) for path in (tmp_path / "fuzz").glob("*-*")]
    assert done.returncode == 0, f"reproduce with {left}:\n{done.stderr[-6000:]}"
    executed = re.search(r"number_of_executed_units: (\d+)", done.stderr)
    assert executed and int(executed[1]) >= runs


def test_every_target_is_run() -> None:
    from tests.fuzz.targets import TARGETS

    assert set(TARGETS) == set(RUNS)


@pytest.mark.parametrize(
    ("fault", "options", "said"),
    [
        ("crash", ("-runs=200000",), "KeyError"),
        ("escape", (), "EscapeError"),
        ("hog", (), "MemoryError"),
        ("hang", ("-timeout=1",), "timeout"),
    ],
)
def test_a_planted_fault_is_found(fault: str, options: tuple[str, ...], said: str, tmp_path: Path) -> None:
    """Or green runs would prove nothing."""
    done = run(f"tests.fuzz.planted:{fault}", tmp_path / "fuzz", tmp_path / "none.whl", 1000, *options)
    assert done.returncode != 0 and said in done.stderr + done.stdout, done.stderr[-3000:]
    assert not (tmp_path / "escaped").exists()
