"""Packages whose public names are found in files, and whose functions are imported on first use.

``kernel_specs.moe.topk_gate`` is two things by Python's rules: the folder of a kernel, and the
function that users call. The import system binds the folder on its parent as soon as anything
inside it is imported; a `Namespace` ignores that binding, so the name always means the function.
The folder stays reachable as a module: ``from kernel_specs.moe.topk_gate.spec import SPEC``,
``from kernel_specs.moe.topk_gate import spec``. (``import kernel_specs.moe.topk_gate.spec as spec``
cannot work: Python resolves its last step by attributes, and the function has none of that name.)

No list names operators twice: the public names of a namespace are what the ``__all__`` of its files
say, read without importing them. Nothing here imports torch or tilelang.
"""

from __future__ import annotations

import ast
import importlib
import sys
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from types import ModuleType
from typing import Any

from tkc.errors import unknown_name


class Namespace(ModuleType):
    """A package that takes its public names from files, and imports a file when one of its names is used.

    An unknown name raises AttributeError with the nearest known one. A file that fails to import
    raises its own error, at every use.
    """

    def __getattr__(self, name: str) -> Any:
        if name == "__all__":
            return sorted(_exports(self.__name__))
        module = None if name.startswith("_") else _module_of(self.__name__, name)
        if module is None:
            known = () if name.startswith("_") else _exports(self.__name__)
            hint = f"In module {self.__name__!r}."
            raise AttributeError(unknown_name("attribute", name, known, hint=hint), name=name, obj=self)
        value = getattr(importlib.import_module(module), name)
        self.__dict__[name] = value
        return value

    def __setattr__(self, name: str, value: Any) -> None:
        if not (_is_own_folder(self, name, value) and _module_of(self.__name__, name)):
            super().__setattr__(name, value)

    def __dir__(self) -> list[str]:
        return sorted({*super().__dir__(), *_exports(self.__name__)})


def open_namespace(package: str, *, files: str) -> None:
    """Make `package`, whose ``__init__`` is running, a `Namespace` over the `files` of `kernel_specs`.

    Args:
        package: ``__name__`` of the caller.
        files: glob pattern of the modules that hold the public names, relative to `kernel_specs`.
    """
    _PATTERNS[package] = files
    sys.modules[package].__class__ = Namespace


_ROOT = Path(__file__).parent
_PATTERNS: dict[str, str] = {}


def _is_own_folder(package: ModuleType, name: str, value: Any) -> bool:
    return isinstance(value, ModuleType) and value.__name__ == f"{package.__name__}.{name}"


@cache
def _module_of(package: str, name: str) -> str | None:
    """The module that defines the public `name` of `package`; None if there is none.

    A kernel's folder nearly always has the name of its function: then one file is read, not all.
    """
    pattern = _PATTERNS[package]
    folder, _, rest = pattern.rpartition("*/")
    likely = _ROOT / folder / name / rest
    if "*" not in folder and likely.is_file() and name in _public_names(likely):
        return _module_name(likely)
    return _exports(package).get(name)


@cache
def _exports(package: str) -> Mapping[str, str]:
    """Every public name of `package`, and the module that defines it."""
    return {name: _module_name(path) for path in sorted(_ROOT.glob(_PATTERNS[package])) for name in _public_names(path)}


def _module_name(path: Path) -> str:
    return ".".join((__package__ or "", *path.relative_to(_ROOT).with_suffix("").parts))


def _public_names(path: Path) -> tuple[str, ...]:
    """The literal ``__all__`` of a file, read without running it; empty if it has none."""
    for node in ast.parse(path.read_bytes(), filename=str(path)).body:
        if isinstance(node, ast.Assign | ast.AnnAssign) and node.value is not None:
            target = node.targets[0] if isinstance(node, ast.Assign) else node.target
            if isinstance(target, ast.Name) and target.id == "__all__":
                return tuple(ast.literal_eval(node.value))
    return ()
