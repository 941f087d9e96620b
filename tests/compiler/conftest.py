"""Units of a small catalogue, and what runs the stages on them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import pytest

from tkc.compiler import (
    CompileOptions,
    StageOutput,
    Tools,
    Unit,
    assemble,
    assemble_action,
    link,
    link_action,
    lower,
    lower_action,
    probe,
)
from tkc.model import Action, Backend, Digest, FileEntry, Host, Manifest, Target, manifest_of
from tkc.registry import CatalogEntry, load_catalog

HOST = Host.this_machine()
_DEFAULTS = CompileOptions()


@dataclass(frozen=True)
class Compiled:
    """What compiling one unit gave: each stage's manifest, and where the files are."""

    unit: Unit
    lowered: Manifest
    assembled: Manifest | None
    linked: Manifest
    files: dict[str, Path]

    @property
    def library(self) -> Path:
        return self.files["kernel.so"]


@pytest.fixture(scope="session")
def scale() -> CatalogEntry:
    return load_catalog("sample_kernels").find("elementwise.scale")


@pytest.fixture
def unit(scale: CatalogEntry) -> Callable[..., Unit]:
    """Make a unit of ``elementwise.scale``."""

    def make(target: str = "cpu", host: str = HOST.arch, options: CompileOptions = _DEFAULTS, **params: str) -> Unit:
        return Unit(scale, scale.spec.bind(**params), Target.parse(target), Host.parse(host), options)

    return make


@pytest.fixture(scope="session")
def stamps_dir(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Shared by the session, so that tools are read and the runtime is compiled once."""
    return tmp_path_factory.mktemp("stamps")


@pytest.fixture
def tools(stamps_dir: Path) -> Callable[[Unit], Tools]:
    return lambda unit: probe(unit.target, unit.host, unit.options, stamps_dir=stamps_dir)


@pytest.fixture
def compiled(tools: Callable[[Unit], Tools], tmp_path: Path) -> Callable[[Unit], Compiled]:
    """Compile a unit, each stage in a folder of its own below `tmp_path`."""
    return lambda unit: compile_in(unit, tools(unit), tmp_path)


def compile_in(unit: Unit, tools: Tools, root: Path) -> Compiled:
    """Run every stage of `unit` below `root`, as a build does."""
    root.mkdir(parents=True, exist_ok=True)
    files: dict[str, Path] = {}

    def finish(action: Action, folder: Path, output: StageOutput) -> Manifest:
        files.update({name: folder / name for name in output.files})
        entries = (FileEntry(n, Digest.of_file(folder / n), (folder / n).stat().st_size) for n in output.files)
        return manifest_of(action, tuple(entries), facts=output.facts)

    folders = [root / name for name in ("lower", "assemble", "link")]
    for folder in folders:
        folder.mkdir()
    lowered = finish(lower_action(unit, tools.toolchain), folders[0], lower(unit, folders[0]))
    assembled = None
    if unit.target.backend is not Backend.CPU:
        output = assemble(unit, tools, lowered, files, folders[1])
        assembled = finish(assemble_action(unit, lowered, tools.toolchain), folders[1], output)
    output = link(unit, tools, lowered, assembled, files, folders[2])
    linked = finish(link_action(unit, lowered, assembled, tools.toolchain), folders[2], output)
    return Compiled(unit, lowered, assembled, linked, files)
