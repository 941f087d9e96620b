"""Supervised worker processes: a compile that crashes, hangs or prints cannot hurt the others.

Each worker is ``python -m tkc.worker``: one JSON line in for a task, JSON lines out for its events, the
last of which is ``done`` or ``failed``. A plain subprocess, not `multiprocessing`, so that nothing of
the parent's program is imported or run again, and nothing is pickled.
"""

from __future__ import annotations

import json
import os
import queue
import signal
import subprocess
import sys
import tempfile
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, BinaryIO

Message = Mapping[str, Any]
"""One JSON object between the parent and a worker."""

_LOG_TAIL_BYTES = 64 * 1024


@dataclass(frozen=True, slots=True)
class Finished:
    """What became of task number `index`.

    Attributes:
        message: the worker's last word, ``done`` or ``failed``; None if the worker died.
        problem: why there is no message: a signal, an exit status, a time limit.
        log: what the worker wrote to its standard error during the task.
    """

    index: int
    message: Message | None
    problem: str = ""
    log: str = ""


class WorkerPool:
    """Runs tasks in up to `jobs` worker processes and yields each result as it comes.

    A worker that dies is replaced, and its task is tried once more in a fresh one; a task that
    outlasts `timeout_s` is killed with everything it started, and is not tried again. Leaving the
    ``with`` block, by an exception or Ctrl-C too, kills what still runs.
    """

    def __init__(self, jobs: int, timeout_s: float, on_event: Callable[[int, Message], None] | None = None) -> None:
        self._jobs = jobs
        self._timeout_s = timeout_s
        self._on_event = on_event or (lambda index, message: None)
        self._results: queue.SimpleQueue[Finished] = queue.SimpleQueue()
        self._stopping = threading.Event()
        self._slots: list[_Slot] = []

    def __enter__(self) -> WorkerPool:
        return self

    def __exit__(self, *exc: object) -> None:
        self._stopping.set()
        for slot in self._slots:
            slot.kill()

    def run(self, tasks: Sequence[Message]) -> Iterator[Finished]:
        """Run every task; results come in the order in which they end."""
        pending: queue.SimpleQueue[tuple[int, Message]] = queue.SimpleQueue()
        for numbered in enumerate(tasks):
            pending.put(numbered)
        self._slots = [_Slot(self._timeout_s) for _ in range(min(self._jobs, len(tasks)))]
        for slot in self._slots:
            threading.Thread(target=self._drain, args=(slot, pending), daemon=True).start()
        for _ in tasks:
            yield self._results.get()

    def _drain(self, slot: _Slot, pending: queue.SimpleQueue[tuple[int, Message]]) -> None:
        try:
            while not self._stopping.is_set():
                try:
                    index, task = pending.get_nowait()
                except queue.Empty:
                    return
                self._results.put(self._run_one(slot, index, task))
        finally:
            slot.close()

    def _run_one(self, slot: _Slot, index: int, task: Message) -> Finished:
        def on_event(message: Message) -> None:
            self._on_event(index, message)

        first = slot.run(index, task, on_event)
        if first.message is not None or slot.timed_out or self._stopping.is_set():
            return first
        on_event({"event": "retry", "problem": first.problem})
        return slot.run(index, task, on_event)


class _Slot:
    """One place for a worker process, started when first needed and again after it died."""

    def __init__(self, timeout_s: float) -> None:
        self._timeout_s = timeout_s
        self._process: subprocess.Popen[bytes] | None = None
        self._log: BinaryIO | None = None
        self.timed_out = False

    def run(self, index: int, task: Message, on_event: Callable[[Message], None]) -> Finished:
        try:
            process, log = self._started()
        except OSError as error:
            return Finished(index, None, f"no worker could be started: {error}")
        log_start = log.seek(0, os.SEEK_END)
        self.timed_out = False
        timer = threading.Timer(self._timeout_s, self._expire)
        timer.start()
        try:
            message = _converse(process, task, on_event)
        finally:
            timer.cancel()
        if message is None:
            problem = f"took longer than {self._timeout_s:g} s" if self.timed_out else _how_it_ended(process)
            self._process = None
        else:
            problem = ""
        return Finished(index, message, problem, _read_log(log, log_start))

    def kill(self) -> None:
        """Kill the worker and everything it started."""
        process = self._process
        if process is not None and process.poll() is None:
            try:
                os.killpg(process.pid, signal.SIGKILL)
            except ProcessLookupError:
                return

    def close(self) -> None:
        """Let an idle worker end; it does so when its input ends."""
        if self._process is not None and self._process.stdin is not None:
            self._process.stdin.close()
            self._process.wait()
            self._process = None
        if self._log is not None:
            self._log.close()

    def _expire(self) -> None:
        self.timed_out = True
        self.kill()

    def _started(self) -> tuple[subprocess.Popen[bytes], BinaryIO]:
        if self._log is None:
            self._log = tempfile.TemporaryFile()  # noqa: SIM115  closed by close(), with the slot
        if self._process is None:
            self._process = subprocess.Popen(
                [sys.executable, "-m", "tkc.worker"],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=self._log,
                env={**os.environ, "PYTHONPATH": os.pathsep.join(path for path in sys.path if path)},
                start_new_session=True,
            )
        return self._process, self._log


def _converse(process: subprocess.Popen[bytes], task: Message, on_event: Callable[[Message], None]) -> Message | None:
    """Give the task, pass events on, return the last word, or None if the worker ends without one."""
    assert process.stdin is not None and process.stdout is not None
    try:
        process.stdin.write(json.dumps(task).encode() + b"\n")
        process.stdin.flush()
        for line in process.stdout:
            message: Message = json.loads(line)
            if message["event"] in {"done", "failed"}:
                return message
            on_event(message)
    except (BrokenPipeError, ValueError):  # ValueError: the line was cut by a kill
        pass
    process.wait()
    return None


def _how_it_ended(process: subprocess.Popen[bytes]) -> str:
    status = process.wait()
    if status < 0:
        return f"the worker was killed by {signal.Signals(-status).name}"
    return f"the worker exited with status {status}"


def _read_log(log: BinaryIO, start: int) -> str:
    end = log.seek(0, os.SEEK_END)
    log.seek(max(start, end - _LOG_TAIL_BYTES))
    return log.read().decode(errors="replace")
