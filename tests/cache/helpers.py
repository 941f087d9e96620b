"""Artifacts to keep, processes to race, and a way to stop a writer before any one of its steps."""

from __future__ import annotations

import io
import os
import pickle
import signal
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import Any
from unittest import mock

from tkc.cache import Store
from tkc.model import Action, Digest, Manifest, Stage

NOBODY = 65534
ROOT_RUNS_THIS = os.geteuid() == 0


def action(name: str = "one") -> Action:
    return Action(Stage.COMPILE, {"spec": "moe.topk_gate", "name": name, "eps": 1e-6})


def request(name: str = "one") -> Digest:
    return Digest.of_bytes(name.encode())


def library(name: str = "one") -> bytes:
    return f"library of {name}\n".encode() * 500


def build(store: Store, name: str = "one", *, files: dict[str, bytes] | None = None) -> Manifest:
    """What a build does with a store, all of it."""
    contents = files or {"kernel.so": library(name), "kernel.cubin": b"cubin of " + name.encode()}
    with store.lock(action(name).key), store.stage() as folder:
        for file, data in contents.items():
            (folder / file).write_bytes(data)
        manifest = store.commit(action(name), folder, tuple(contents), facts={"entry": "main", "x": 0.5})
        store.write_ref(request(name), {"spec": "moe.topk_gate", "name": name}, manifest.key)
    return manifest


def tree(root: Path) -> dict[str, bytes]:
    """Every file below `root`, with its content."""
    return {str(path.relative_to(root)): path.read_bytes() for path in sorted(root.rglob("*")) if path.is_file()}


# Processes


def in_child(function: Callable[[], Any], *, uid: int | None = None) -> Any:
    """Run `function` in a forked process, as another user if `uid` says so; what it returned or raised."""
    (result,) = in_children([function], uid=uid)
    if isinstance(result, BaseException):
        raise result
    return result


def in_children(functions: Sequence[Callable[[], Any]], *, uid: int | None = None) -> list[Any]:
    """Run each function in a process of its own, all starting at once; what each returned or raised."""
    gate_out, gate_in = os.pipe()
    children = [_fork(function, gate_out, gate_in, uid) for function in functions]
    os.close(gate_in)
    os.close(gate_out)
    return [_collect(pid, answer) for pid, answer in children]


def fork_and_kill(function: Callable[[], Any]) -> int:
    """Run `function` in a forked process; the signal that ended it, 0 if none did."""
    pid = os.fork()
    if pid == 0:
        try:
            function()
        finally:
            os._exit(0)
    return os.waitpid(pid, 0)[1] & 0x7F


def _fork(function: Callable[[], Any], gate_out: int, gate_in: int, uid: int | None) -> tuple[int, int]:
    answer_out, answer_in = os.pipe()
    pid = os.fork()
    if pid:
        os.close(answer_in)
        return pid, answer_out
    try:
        if uid is not None:
            os.setgroups([])
            os.setgid(uid)
            os.setuid(uid)
        os.close(gate_in)
        os.read(gate_out, 1)
        result = function()
    except BaseException as error:
        result = error
    with os.fdopen(answer_in, "wb") as pipe:
        pickle.dump(result, pipe)
    os._exit(0)


def _collect(pid: int, answer: int) -> Any:
    with os.fdopen(answer, "rb") as pipe:
        data = pipe.read()
    os.waitpid(pid, 0)
    return pickle.loads(data)


# Steps

_CHANGING = (
    "write",
    "fsync",
    "link",
    "rename",
    "replace",
    "mkdir",
    "unlink",
    "rmdir",
    "utime",
    "ftruncate",
    "pwrite",
)


_READING = ("read", "stat", "lstat", "fstat", "scandir", "listdir", "readlink", "access", "pread")

FILE_CALLS = frozenset({*_CHANGING, *_READING, "open", "close"})
"""The functions of `os` that `before_each_operation` stops at."""

OTHER_CALLS = frozenset(
    {
        "cpu_count",
        "fdopen",
        "fork",
        "fsdecode",
        "fspath",
        "getpid",
        "geteuid",
        "kill",
        "register_at_fork",
        "uname",
        "urandom",
    }
)
"""Functions of `os` that the sources use and that are no file operation; ``os.fdopen`` is ``io.open``."""


@contextmanager
def before_each_step(act: Callable[[str], None]) -> Iterator[None]:
    """Call `act` with the name of every system call that changes a file system, just before it is made."""

    def stepping(name: str, call: Callable[..., Any]) -> Callable[..., Any]:
        def step(*args: Any, **kwargs: Any) -> Any:
            if name != "open" or args[1] & (os.O_WRONLY | os.O_RDWR | os.O_CREAT):
                act(name)
            return call(*args, **kwargs)

        return step

    with mock.patch.multiple(os, **{name: stepping(name, getattr(os, name)) for name in (*_CHANGING, "open")}):
        yield


@contextmanager
def before_each_operation(act: Callable[[str], None]) -> Iterator[None]:
    """Call `act` with the name of every operation on a file, reading ones too, just before it is made.

    A close has been made when `act` is called: what fails there is what a server says of earlier writes.
    """

    def stepping(name: str, call: Callable[..., Any]) -> Callable[..., Any]:
        def step(*args: Any, **kwargs: Any) -> Any:
            if name == "close":
                call(*args, **kwargs)
                return act(name)
            act(name)
            return call(*args, **kwargs)

        return step

    with (
        mock.patch.multiple(os, **{name: stepping(name, getattr(os, name)) for name in FILE_CALLS}),
        mock.patch.object(io, "open", stepping("io.open", io.open)),
    ):
        yield


Before = Callable[[Callable[[str], None]], AbstractContextManager[None]]


def steps_of(function: Callable[[], Any], before: Before = before_each_step) -> list[str]:
    """The names of the steps that `function` makes."""
    seen: list[str] = []
    with before(seen.append):
        function()
    return seen


def stopping_at(number: int, act: Callable[[], None]) -> Callable[[str], None]:
    """For `before_each_step`: call `act` at the step with this number, and never again."""
    left = number

    def count(_name: str) -> None:
        nonlocal left
        left -= 1
        if left == -1:
            act()

    return count


def kill_this_process() -> None:
    os.kill(os.getpid(), signal.SIGKILL)
