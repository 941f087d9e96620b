from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from tkc.cache import Store
from tkc.errors import TkcError


@pytest.fixture
def store(tmp_path: Path) -> Store:
    """The user store."""
    return Store(tmp_path / "user-store", writable=True)


@dataclass(frozen=True)
class Said:
    """What a command printed and how it ended."""

    code: int
    out: str
    err: str

    @property
    def json(self) -> Any:
        return json.loads(self.out)


@pytest.fixture
def cache() -> Callable[..., Said]:
    """Run ``tkc cache …``; an error that the command line would report is exit code 1 and its text."""
    from tkc.cli import cli

    def run(*words: str) -> Said:
        done = CliRunner().invoke(cli, ["cache", *map(str, words)], standalone_mode=False)
        if isinstance(done.exception, TkcError):
            return Said(1, done.stdout, str(done.exception))
        if done.exception is not None:
            raise done.exception
        return Said(done.return_value or 0, done.stdout, done.stderr)

    return run
