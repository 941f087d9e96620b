"""Find CANN's bisheng and ld.lld, for Ascend."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

from tkc.compiler.finders.device import DeviceCompiler
from tkc.compiler.finders.packages import program_version
from tkc.compiler.trees import Tree, digest_trees
from tkc.model import Component


def find_cann(stamps_dir: Path | None) -> DeviceCompiler:
    compiler, looked = _find_program("bisheng")
    linker, looked_for_linker = _find_program("ld.lld", beside=compiler)
    if compiler is None or linker is None:
        name, places = ("bisheng", looked) if compiler is None else ("ld.lld", looked_for_linker)
        return DeviceCompiler(missing=_cann_missing(name, places))
    trees = (Tree("bisheng", compiler.resolve()), Tree("ld.lld", linker.resolve()))
    component = Component("bisheng", program_version(compiler), digest_trees(trees, stamps_dir))
    return DeviceCompiler("bisheng", compiler, linker, components=(component,))


def _find_program(name: str, beside: Path | None = None) -> tuple[Path | None, list[str]]:
    """A program of CANN, and the places that were looked at."""
    places: dict[str, Path] = {}
    for variable in ("BISHENG_HOME", "ASCEND_HOME_PATH", "ASCEND_TOOLKIT_HOME"):
        if root := os.environ.get(variable):
            for below in ("bin", "compiler/ccec_compiler/bin", "."):
                places[f"{variable} ({Path(root) / below})"] = Path(root) / below / name
        else:
            places[f"{variable} (not set)"] = Path()
    if beside is not None:
        places[f"beside bisheng ({beside.parent})"] = beside.with_name(name)
    found = next((path for path in places.values() if path.name == name and os.access(path, os.X_OK)), None)
    on_path = shutil.which(name) if found is None else None
    return found or (Path(on_path) if on_path else None), [*places, "PATH"]


def _cann_missing(name: str, places: list[str]) -> str:
    return (
        f"{name} is missing, which compiles for Ascend. Looked in: {'; '.join(places)}. Two ways on: install CANN "
        "and set ASCEND_HOME_PATH to it; or keep what was lowered (`tkc build --emit source`), carry the store to a "
        "machine that has CANN, and go on there with `tkc build --from-lowered`"
    )
