"""A changed file is always noticed; an unchanged one is not read again."""

from __future__ import annotations

import os
import time
from pathlib import Path

import pytest

from tkc.compiler import trees
from tkc.compiler.trees import Tree, digest_trees
from tkc.model import Digest

LONG_AGO_NS = time.time_ns() - 10**12


@pytest.fixture
def tree(tmp_path: Path) -> Tree:
    """A tree that was last changed long ago."""
    root = tmp_path / "include"
    (root / "sub").mkdir(parents=True)
    (root / "a.h").write_text("#define A 1\n")
    (root / "sub" / "b.h").write_text("#define B 1\n")
    return Tree("include", root)


@pytest.fixture
def settled(monkeypatch: pytest.MonkeyPatch) -> None:
    """Take every file for one that was changed long ago."""
    monkeypatch.setattr(trees, "_SETTLED_NS", -(10**18))


def forbid_reading(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(path: Path) -> Digest:
        raise AssertionError(f"{path} was read again")

    monkeypatch.setattr(Digest, "of_file", staticmethod(refuse))


@pytest.mark.usefixtures("settled")
def test_an_unchanged_tree_is_not_read_again(tree: Tree, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    first = digest_trees((tree,), tmp_path / "stamps")
    forbid_reading(monkeypatch)
    assert digest_trees((tree,), tmp_path / "stamps") == first


@pytest.mark.usefixtures("settled")
def test_a_header_edited_in_place_is_noticed_though_size_and_mtime_are_the_same(tree: Tree, tmp_path: Path) -> None:
    header = tree.root / "a.h"
    os.utime(header, ns=(LONG_AGO_NS, LONG_AGO_NS))
    before = digest_trees((tree,), tmp_path / "stamps")
    header.write_text("#define A 2\n")
    os.utime(header, ns=(LONG_AGO_NS, LONG_AGO_NS))
    assert digest_trees((tree,), tmp_path / "stamps") != before


@pytest.mark.parametrize("change", ["added", "removed", "renamed"])
def test_a_tree_with_other_files_has_another_digest(tree: Tree, change: str) -> None:
    before = digest_trees((tree,), None)
    if change == "added":
        (tree.root / "c.h").write_text("")
    elif change == "removed":
        (tree.root / "a.h").unlink()
    else:
        (tree.root / "a.h").rename(tree.root / "c.h")
    assert digest_trees((tree,), None) != before


def test_a_tree_installed_elsewhere_has_the_same_digest(tree: Tree, tmp_path: Path) -> None:
    before = digest_trees((tree,), None)
    moved = tree.root.rename(tmp_path / "elsewhere")
    assert digest_trees((Tree("include", moved),), None) == before


def test_what_changed_just_now_is_not_remembered(tree: Tree, tmp_path: Path) -> None:
    digest_trees((tree,), tmp_path / "stamps")
    assert not (tmp_path / "stamps").exists()


@pytest.mark.usefixtures("settled")
@pytest.mark.parametrize("stamps", [None, "missing/parent/stamps", "a file/stamps"])
def test_stamps_that_cannot_be_written_cost_time_alone(tree: Tree, tmp_path: Path, stamps: str | None) -> None:
    (tmp_path / "a file").write_text("")
    place = tmp_path / stamps if stamps else None
    assert digest_trees((tree,), place) == digest_trees((tree,), tmp_path / "stamps")


@pytest.mark.usefixtures("settled")
def test_a_damaged_stamp_is_made_again(tree: Tree, tmp_path: Path) -> None:
    stamps = tmp_path / "stamps"
    before = digest_trees((tree,), stamps)
    for stamp in stamps.iterdir():
        stamp.write_text("sha256:12")
    assert digest_trees((tree,), stamps) == before


def test_compiled_python_and_skipped_folders_do_not_count(tree: Tree) -> None:
    chosen = Tree("include", tree.root, (".h",), frozenset({"sub"}))
    before = digest_trees((chosen,), None)
    (tree.root / "__pycache__").mkdir()
    (tree.root / "__pycache__" / "x.h").write_text("")
    (tree.root / "sub" / "b.h").write_text("#define B 2\n")
    (tree.root / "notes.txt").write_text("")
    assert digest_trees((chosen,), None) == before
