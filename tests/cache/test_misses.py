from __future__ import annotations

import errno
import os
import resource
from pathlib import Path

import pytest

from tests.cache.helpers import in_child, in_children
from tkc.cache import MissLog, misses


@pytest.fixture
def log(tmp_path: Path) -> MissLog:
    return MissLog(tmp_path / "misses-v1" / "misses.jsonl")


def test_equal_misses_are_counted_in_order_of_appearance(log: MissLog) -> None:
    for name in ("b", "a", "b", "b"):
        assert log.append({"spec": name, "eps": 0.5})
    found = log.read()
    assert [(miss.entry["spec"], miss.count) for miss in found] == [("b", 3), ("a", 1)]
    assert all(miss.first_s <= miss.last_s for miss in found) and found.damaged_lines == 0


def test_an_entry_is_read_as_it_was_written(log: MissLog) -> None:
    entry = {
        "spec": "moe.topk_gate",
        "specialization": {"n": 8, "x": None, "f": True, "s": "ü\n"},
        "target": "sm90",
    }
    log.append(entry)
    (miss,) = log.read()
    assert miss.entry == entry


def test_many_processes_append_at_once_and_no_line_is_lost(log: MissLog) -> None:
    def write(number: int) -> int:
        return sum(log.append({"process": number, "miss": miss, "padding": "x" * 2000}) for miss in range(100))

    assert in_children([lambda number=number: write(number) for number in range(8)]) == [100] * 8
    found = log.read()
    assert len(found) == 800 and found.damaged_lines == 0


def test_a_torn_line_is_skipped_and_counted_and_swallows_no_other(log: MissLog) -> None:
    log.append({"spec": "before"})
    for torn in (
        b'{"schema":"tkc.miss/1","ent',
        b"\xff\x00\xfe",
        b"[1]",
        b'{"schema":"other"}',
        b"[" * 50_000,
    ):
        with log.path.open("ab") as file:
            file.write(torn)
        log.append({"spec": "after"})
    found = log.read()
    assert [(miss.entry["spec"], miss.count) for miss in found] == [("before", 1), ("after", 5)]
    assert found.damaged_lines == 5


def test_a_line_without_end_takes_no_memory(log: MissLog) -> None:
    log.append({"spec": "before"})
    with log.path.open("r+b") as file:
        file.truncate(1 << 28)

    def read() -> tuple[int, bool]:
        most = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize() + (1 << 26)
        resource.setrlimit(resource.RLIMIT_AS, (most, most))
        found = log.read()
        return len(found), found.damaged_lines > 0

    assert in_child(read) == (1, True)


@pytest.mark.parametrize("odd", ['{"$x": 1}', "1.5", "Infinity", "[" * 300 + "]" * 300, "1" + "0" * 5000])
def test_a_line_that_could_not_have_been_written_is_damaged(log: MissLog, odd: str) -> None:
    """Such a line ended the summary of all of them."""
    log.append({"spec": "before"})
    with log.path.open("a") as file:
        file.write(f'\n{{"schema": "tkc.miss/1", "time_s": 1, "entry": {{"spec": {odd}}}}}\n')
        file.write('{"schema": "tkc.miss/1", "time_s": 1' + "0" * 400 + ', "entry": {}}\n')
    found = log.read()
    assert len(found) == 1 and found.damaged_lines == 2


def test_the_log_is_bounded_and_keeps_the_newest(log: MissLog, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(misses, "MAX_BYTES", 10_000)
    for number in range(1000):
        assert log.append({"number": number, "padding": "x" * 100})
    assert sum(path.stat().st_size for path in log.path.parent.iterdir()) < 3 * 10_000
    assert [miss.entry["number"] for miss in log.read()][-1] == 999
    assert len(log.read()) > 50


def test_an_oversized_entry_is_not_logged(log: MissLog) -> None:
    assert not log.append({"spec": "x" * misses.MAX_LINE_BYTES})
    assert len(log.read()) == 0


def test_a_full_disk_stops_no_job(log: MissLog, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_args: object) -> int:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(os, "write", full)
    assert log.append({"spec": "x"}) is False


def test_what_has_no_canonical_form_is_refused(log: MissLog) -> None:
    with pytest.raises(TypeError, match="no canonical form"):
        log.append({"spec": object()})
