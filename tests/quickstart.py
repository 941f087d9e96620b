"""What `make quickstart` runs: build, run and check on the CPU, then compile for devices that are not here.

Uses the command and the loader as a user would, in a store of its own, and prints one table. Exits with 1
if anything failed.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass

from rich.console import Console
from rich.table import Table

GRID = "smoke"
COMPILED = {"sm90": "compiled", "sm100": "compiled", "ascend950": "lowered"}


@dataclass(frozen=True)
class Row:
    """One line of the table."""

    operator: str
    target: str
    result: str
    ok: bool
    size_bytes: int
    seconds: float


def main() -> int:
    """Run the whole; gives the exit code."""
    rows: list[Row] = []
    with tempfile.TemporaryDirectory(prefix="tkc-quickstart-") as folder:
        os.environ["TKC_CACHE_DIR"] = folder
        os.environ["TKC_ON_MISS"] = "error"  # whatever runs below was built ahead of time
        rows += _run_on_cpu(_build("cpu"))
        for target, verb in COMPILED.items():
            rows += _rows(_build(target), target, verb)
    _print(rows)
    return 0 if all(row.ok for row in rows) else 1


def _build(target: str) -> list[dict]:
    command = [sys.executable, "-m", "tkc", "build", "--target", target, "--grid", GRID, "--json"]
    if target == "ascend950":
        command += ["--emit", "source"]
    Console(stderr=True).print(f"tkc {' '.join(command[3:])}", style="dim")
    done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=False)
    if not done.stdout:
        raise SystemExit(f"tkc build for {target} ended with {done.returncode} and printed nothing")
    return json.loads(done.stdout)["artifacts"]


def _rows(artifacts: list[dict], target: str, verb: str) -> Iterator[Row]:
    for spec in dict.fromkeys(artifact["spec"] for artifact in artifacts):
        mine = [artifact for artifact in artifacts if artifact["spec"] == spec]
        failed = [artifact for artifact in mine if artifact["status"] == "failed"]
        refused = sum(artifact["status"] == "refused" for artifact in mine)
        result = f"{len(failed)} of {len(mine)} failed" if failed else f"{verb} {len(mine) - refused}"
        if refused:
            result += f", {refused} not for it"
        yield Row(spec, target, result, not failed, *_totals(mine))


def _run_on_cpu(artifacts: list[dict]) -> Iterator[Row]:
    from tkc.registry import find_entry
    from tkc.runtime.check import check_loaded

    for row in _rows(artifacts, "cpu", "built"):
        if not row.ok:
            yield row
            continue
        entry = find_entry(row.operator)
        started = time.perf_counter()
        results = [
            result
            for artifact in artifacts
            if artifact["spec"] == row.operator
            for result in check_loaded(entry, entry.spec.specialization(artifact["specialization"]), "cpu")
        ]
        wrong = [result for result in results if not result.ok]
        text = f"{len(results)} outputs equal the reference" if not wrong else f"{len(wrong)} of {len(results)} wrong"
        yield Row(row.operator, "cpu", text, not wrong, row.size_bytes, row.seconds + time.perf_counter() - started)


def _totals(artifacts: list[dict]) -> tuple[int, float]:
    return sum(a["size_bytes"] for a in artifacts), sum(a["seconds"] for a in artifacts)


def _print(rows: list[Row]) -> None:
    table = Table(title=f"grid {GRID!r}")
    for title in ("operator", "target", "result"):
        table.add_column(title)
    for title in ("size", "time"):
        table.add_column(title, justify="right")
    for row in rows:
        style = None if row.ok else "red"
        table.add_row(
            row.operator, row.target, row.result, f"{row.size_bytes / 1000:.1f} KB", f"{row.seconds:.2f} s", style=style
        )
    Console(width=110).print(table)


if __name__ == "__main__":
    sys.exit(main())
