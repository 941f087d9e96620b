"""A worker process: reads one task a line, compiles, answers in JSON lines. Started by `tkc.workers`."""

from __future__ import annotations

import ctypes
import json
import os
import signal
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, TextIO

from tkc.build import Planned, compile_and_commit, planned_from_task
from tkc.cache import Store
from tkc.errors import CompileError, TkcError

_PR_SET_PDEATHSIG = 1


def main() -> None:
    """Serve tasks from standard input until it ends."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is the parent's to handle
    _die_with_parent()
    answers = _private_stdout()

    def send(message: Mapping[str, Any]) -> None:
        answers.write(json.dumps(message) + "\n")
        answers.flush()

    for line in sys.stdin:
        send(_serve(json.loads(line), send))


def _serve(task: Mapping[str, Any], send: Callable[[Mapping[str, Any]], None]) -> Mapping[str, Any]:
    try:
        planned = planned_from_task(task)
        store = Store(Path(task["store"]), writable=True)
        return {"event": "done", **_compile(planned, store, send, lower_only=task["lower_only"])}
    except CompileError as error:
        log = error.log_path.read_text(errors="replace") if error.log_path and error.log_path.exists() else ""
        return {
            "event": "failed",
            "stage": error.stage,
            "kind": "CompileError",
            "error": str(error),
            "log": log,
        }
    except TkcError as error:
        return {"event": "failed", "stage": "", "kind": type(error).__name__, "error": str(error), "log": ""}


def _compile(
    planned: Planned, store: Store, send: Callable[[Mapping[str, Any]], None], *, lower_only: bool
) -> Mapping[str, Any]:
    def on_stage(stage: str) -> None:
        send({"event": "stage", "stage": stage})

    manifest, fresh = compile_and_commit(planned, store, on_stage=on_stage, lower_only=lower_only)
    return {"fresh": fresh, "manifest": manifest.to_bytes().decode()}


def _private_stdout() -> TextIO:
    """Keep the pipe to the parent for answers; whatever else is printed goes to standard error."""
    answers = os.fdopen(os.dup(sys.stdout.fileno()), "w", encoding="utf-8")
    os.dup2(sys.stderr.fileno(), sys.stdout.fileno())
    return answers


def _die_with_parent() -> None:
    """Ask the kernel to end this process when its parent is killed, so that no compile is orphaned."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)


if __name__ == "__main__":
    main()
