"""Many processes at once, bounded: each artifact is compiled once where locks work, and right where they do not."""

from __future__ import annotations

import errno
import fcntl
import os
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.cache.helpers import in_children
from tests.cache_tools.helpers import library, make, request_of
from tkc.cache import Hit, Store, locks, owner
from tkc.model import Digest

SMALL, LARGE = (8, 12), pytest.param((64, 200), marks=pytest.mark.level2)


def ask(root: Path, count: int, first: int) -> int:
    """What a cold job does: each artifact in turn, from the store or compiled under its lock; how many were right."""
    store = Store(root, writable=True)
    right = 0
    for number in range(count):
        name = f"kernel{(first + number) % count}"
        if not store.resolve(request_of(name).key):
            with store.lock(Digest.of_bytes(name.encode())):
                if not store.resolve(request_of(name).key):
                    with (root.parent / "compiled").open("a") as log:
                        log.write(f"{name}\n")
                    make(store, name)
        found = store.resolve(request_of(name).key)
        right += isinstance(found, Hit) and found.path("kernel.so").read_bytes() == library(f"{name} cpu")
    return right


def compiled(root: Path) -> Counter[str]:
    return Counter((root.parent / "compiled").read_text().split())


@pytest.mark.parametrize("size", [SMALL, LARGE], ids=str)
def test_processes_that_ask_at_once_compile_each_artifact_once_in_total(store: Store, size: tuple[int, int]) -> None:
    """A1, A4: ranks that start together on a cold store."""
    processes, count = size
    jobs = [lambda first=rank * 7: ask(store.root, count, first) for rank in range(processes)]
    assert in_children(jobs) == [count] * processes
    assert compiled(store.root) == {f"kernel{number}": 1 for number in range(count)}
    assert list((store.root / "staging-v1").iterdir()) == []


@pytest.mark.parametrize("size", [SMALL, LARGE], ids=str)
def test_two_machines_that_share_a_folder_without_locks_only_double_the_work(
    store: Store, size: tuple[int, int], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A5, A6: every lock call fails, and half of the processes are in another namespace of process ids."""
    processes, count = size

    def no_locks(*_args: object) -> None:
        raise OSError(errno.ENOLCK, os.strerror(errno.ENOLCK))

    monkeypatch.setattr(fcntl, "flock", no_locks)
    monkeypatch.setattr(locks, "TIMEOUT_S", 1.0)

    def on_machine(number: int, act: Callable[[], int]) -> int:
        owner._pid_namespace.cache_clear()
        owner._pid_namespace = lambda: number
        return act()

    jobs = [
        lambda rank=rank: on_machine(rank % 2, lambda: ask(store.root, count, rank * 7)) for rank in range(processes)
    ]
    assert in_children(jobs) == [count] * processes
    assert set(compiled(store.root)) == {f"kernel{number}" for number in range(count)}
    assert max(compiled(store.root).values()) <= processes
