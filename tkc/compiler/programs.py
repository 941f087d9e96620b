"""Run a compiler: its words go into the error if it fails."""

from __future__ import annotations

import shlex
import subprocess
from collections.abc import Mapping
from pathlib import Path

from tkc.compiler.stages import Unit
from tkc.errors import CompileError
from tkc.model import Stage

LOG = "log.txt"
_WORDS = 12


def run_program(
    command: tuple[str, ...],
    *,
    unit: Unit,
    stage: Stage,
    folder: Path,
    log: Path,
    environment: Mapping[str, str] | None = None,
) -> str:
    """Run `command` in `folder`, without input; give what it said.

    Raises CompileError with the first lines of what it said, and all of it in `log`, unless it exits with 0.
    """
    done = subprocess.run(
        command,
        cwd=folder,
        env=environment,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        errors="replace",
        check=False,
    )
    if done.returncode == 0:
        return done.stdout + done.stderr
    log.write_text(f"$ {shlex.join(command)}\n{done.stdout}{done.stderr}")
    words = "\n".join((done.stderr.strip() or done.stdout.strip()).splitlines()[:_WORDS])
    how = f"failed with status {done.returncode}" if done.returncode > 0 else f"died of signal {-done.returncode}"
    raise failed(unit, stage, f"{Path(command[0]).name} {how}: {words or 'it said nothing'}", log)


def failed(unit: Unit, stage: Stage, why: str, log: Path | None = None) -> CompileError:
    """The error that says why a stage of `unit` failed."""
    return CompileError(f"{unit}: {why}", action=str(unit), stage=stage.value, log_path=log)
