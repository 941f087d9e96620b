"""The catalogue is what the folders say."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tkc.errors import SpecError
from tkc.model import Backend
from tkc.registry import load_catalog, sources_read_once

SPEC = """
from tkc.model import KernelSpec
from demo_kernels.{helper} import AXES
SPEC = KernelSpec(name="{name}", summary="a kernel", definition="a test", const=AXES, var=(),
                  specialize=lambda: {{}}, arguments=lambda s: (), grid=lambda d: [])
"""


@pytest.fixture
def package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A catalogue of one kernel, whose variant and spec import helpers in several ways."""
    root = tmp_path / "demo_kernels"
    _write(root / "__init__.py", "")
    _write(root / "_axes.py", "AXES = ()")
    _write(root / "_unused.py", "")
    _write(root / "fam" / "__init__.py", "")
    _write(root / "fam" / "_tiles.py", "from . import _deep\n")
    _write(root / "fam" / "_deep.py", "")
    _write(root / "fam" / "one" / "__init__.py", "")
    _write(root / "fam" / "one" / "spec.py", SPEC.format(name="fam.one", helper="_axes"))
    _write(root / "fam" / "one" / "reference.py", "")
    _write(root / "fam" / "one" / "cuda.py", "from demo_kernels.fam import _tiles\n")
    _write(root / "fam" / "one" / "cpu.py", "import math\n")
    monkeypatch.syspath_prepend(tmp_path)
    yield root
    load_catalog.cache_clear()
    for name in [name for name in sys.modules if name.startswith("demo_kernels")]:
        del sys.modules[name]


def _write(path: Path, text: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)


def test_backends_are_read_from_which_files_exist(package: Path) -> None:
    entry = load_catalog("demo_kernels").find("fam.one")
    assert entry.backends == (Backend.CUDA, Backend.CPU)
    with pytest.raises(SpecError, match=r"no variant for backend 'ascend'.*cuda, cpu"):
        entry.require(Backend.ASCEND)


def test_sources_are_the_import_closure_and_nothing_else(package: Path) -> None:
    sources = load_catalog("demo_kernels").find("fam.one").sources(Backend.CUDA)
    assert set(sources) == {
        "_axes.py",
        "fam/__init__.py",
        "fam/_deep.py",
        "fam/_tiles.py",
        "fam/one/cuda.py",
        "fam/one/spec.py",
    }


@pytest.mark.parametrize("edited", ["fam/_deep.py", "fam/one/cuda.py", "_axes.py"])
def test_imported_helper_changed_changes_the_digest(package: Path, edited: str) -> None:
    """C6: elsewhere only the defining file was stamped, and a changed helper was not noticed."""
    entry = load_catalog("demo_kernels").find("fam.one")
    before = entry.source_digest(Backend.CUDA)
    (package / edited).write_text((package / edited).read_text() + "\n# edited\n")
    assert entry.source_digest(Backend.CUDA) != before


def test_unrelated_file_does_not_change_the_digest(package: Path) -> None:
    entry = load_catalog("demo_kernels").find("fam.one")
    before = entry.source_digest(Backend.CUDA)
    (package / "_unused.py").write_text("x = 1\n")
    (package / "fam" / "one" / "cpu.py").write_text("import cmath\n")
    assert entry.source_digest(Backend.CUDA) == before


def test_misnamed_spec_is_refused(package: Path) -> None:
    _write(package / "fam" / "two" / "spec.py", SPEC.format(name="fam.three", helper="_axes"))
    with pytest.raises(SpecError, match=r"calls itself 'fam\.three'.*'fam\.two'"):
        load_catalog("demo_kernels")


def test_spec_without_reference_is_incomplete(package: Path) -> None:
    _write(package / "fam" / "two" / "spec.py", SPEC.format(name="fam.two", helper="_axes"))
    with pytest.raises(SpecError, match="incomplete without its PyTorch reference"):
        load_catalog("demo_kernels")


def test_folder_without_a_spec_object_is_refused(package: Path) -> None:
    _write(package / "fam" / "two" / "spec.py", "")
    with pytest.raises(SpecError, match="defines no SPEC"):
        load_catalog("demo_kernels")


def test_unknown_spec_names_the_nearest(package: Path) -> None:
    with pytest.raises(SpecError, match=r"unknown spec 'fam\.on'. Did you mean 'fam\.one'"):
        load_catalog("demo_kernels").find("fam.on")


def test_missing_package_is_named() -> None:
    with pytest.raises(SpecError, match="no_such_package"):
        load_catalog("no_such_package")


def test_sources_are_read_once_within_the_block_and_anew_after_it(package: Path) -> None:
    entry = load_catalog("demo_kernels").find("fam.one")
    with sources_read_once():
        files, digest = entry.sources(Backend.CUDA), entry.source_digest(Backend.CUDA)
        (package / "fam" / "_deep.py").write_text("CHANGED = 1\n")
        assert (entry.sources(Backend.CUDA), entry.source_digest(Backend.CUDA)) == (files, digest)
        assert entry.source_digest(Backend.CPU) != digest
    assert entry.sources(Backend.CUDA) != files
    assert entry.source_digest(Backend.CUDA) != digest
