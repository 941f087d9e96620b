"""A live progress bar on standard error."""

from __future__ import annotations

from rich.console import Console
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    TextColumn,
    TimeElapsedColumn,
    TimeRemainingColumn,
)


class Bar:
    """A bar with a count, the time so far, the time left, and what is being done."""

    def __init__(self, title: str, total: int) -> None:
        self._progress = Progress(
            TextColumn(title),
            BarColumn(bar_width=30),
            MofNCompleteColumn(),
            TimeElapsedColumn(),
            TimeRemainingColumn(),
            TextColumn("{task.fields[doing]}"),
            console=Console(stderr=True),
            transient=True,
        )
        self._task = self._progress.add_task(title, total=total, doing="")

    def __enter__(self) -> Bar:
        self._progress.start()
        return self

    def __exit__(self, *exc: object) -> None:
        self._progress.stop()

    def advance(self) -> None:
        """One more is done."""
        self._progress.advance(self._task)

    def at(self, done: int, total: int) -> None:
        """So many of so many are done."""
        self._progress.update(self._task, completed=done, total=total)

    def doing(self, text: str) -> None:
        """Say what is being done now."""
        self._progress.update(self._task, doing=text)

    def print(self, line: str) -> None:
        """Print a line above the bar."""
        self._progress.console.print(line, markup=False, highlight=False)
