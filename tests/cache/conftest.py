from __future__ import annotations

import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from tkc.cache import Store


@pytest.fixture
def store(tmp_path: Path) -> Store:
    return Store(tmp_path / "store", writable=True)


@pytest.fixture
def open_folder() -> Iterator[Path]:
    """A folder that every user can enter, unlike pytest's."""
    path = Path(tempfile.mkdtemp(prefix="tkc-test-"))
    path.chmod(0o755)
    yield path
    shutil.rmtree(path)
