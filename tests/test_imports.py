"""What a file imports, by its words: never less than what the parser finds."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

import kernel_specs
import tkc
from tkc.imports import imported_modules

HERE = ("package", "family", "kernel")


def by_the_parser(source: str, package: tuple[str, ...]) -> set[tuple[str, ...]]:
    found = set()
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import):
            found |= {tuple(alias.name.split(".")) for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            base = package[: len(package) - node.level + 1] if node.level else ()
            base += tuple(node.module.split(".")) if node.module else ()
            found |= {base, *((*base, alias.name) for alias in node.names)}
    return found


@pytest.mark.parametrize("package", [kernel_specs, tkc], ids=lambda package: package.__name__)
def test_every_file_of_ours_imports_what_the_parser_finds(package) -> None:
    files = sorted(Path(package.__path__[0]).rglob("*.py"))
    assert len(files) > 40
    for file in files:
        source = file.read_text(encoding="utf-8")
        assert set(imported_modules(source, HERE)) == by_the_parser(source, HERE), file


@pytest.mark.parametrize(
    "source",
    [
        "import a",
        "import a.b as c, d",
        "from a import b",
        "from a.b import (\n    c,\n    d as e,\n)\n",
        "from a import (b,  # not the end)\n  c)\n",
        "from . import a",
        "from .. a import b",
        "from . a . b import c",
        "from.a import b",
        "from ...a import *",
        "from a \\\n  import b, \\\n  c\nimport d",
        "from \\\r\n a import b\r\nimport c\r\n",
        "def f():\n    import a\n",
        "if a: from b import c\nelse: import d; import e",
        "x = 1; import a",
        "x = [\n 1,\n]; import a",
        "x = [\n 1\n] ; from a import b",
        "class A:\n\tfrom b import c\n",
        "try:\n import a\nexcept ImportError: import b",
        '"""\nimport the words of a text\n"""\nimport a',
        '"""\nfrom here import there\n"""\nimport a',
        "importa = 1\nfrom_ = 2\n",
        "x = importlib.import_module('a')",
        "\fimport a",
        "import a # from b import c",
        "async def f():\n  async with x: import a\n",
        "match x:\n  case 1: import a\n",
        "import é.ü",
        "",
    ],
)
def test_statements_in_every_spelling_are_found(source: str) -> None:
    assert set(imported_modules(source, HERE)) >= by_the_parser(source, HERE)


def test_what_is_no_python_is_a_syntax_error() -> None:
    with pytest.raises(SyntaxError):
        list(imported_modules("from a import (", HERE))
