from __future__ import annotations

import re
from pathlib import Path

ROOT = Path(__file__).parents[2]


def test_every_test_that_the_reliability_page_names_is_there() -> None:
    named = re.findall(r"`(tests/\S+\.py)::(\w+)`", (ROOT / "docs" / "reliability.md").read_text())
    assert len(named) > 40
    gone = [f"{path}::{name}" for path, name in named if f"def {name}(" not in (ROOT / path).read_text()]
    assert gone == []


def test_every_command_is_on_the_cache_page() -> None:
    from cache_tools.cli import cache

    page = (ROOT / "docs" / "cache.md").read_text()
    assert [name for name in cache.commands if f"`{name}`" not in page and name != "dir"] == []
