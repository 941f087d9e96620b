"""A kernel library for MoE models: every operator with a PyTorch reference, compiled ahead of time.

Operators are ``kernel_specs.<family>.<operator>``; settings are in `kernel_specs.config` and here;
references are in `kernel_specs.torch`. Importing any of these imports neither torch nor tilelang.
"""

# ruff: noqa: F403, F405 (config's __all__ is the one list of its names)

import importlib
import pkgutil

from kernel_specs.config import *
from kernel_specs.config import __all__ as _settings
from tkc.errors import unknown_name

_packages = tuple(name for _, name, _ in pkgutil.iter_modules(__path__) if not name.startswith("_"))
__all__ = [*_packages, *_settings]


def __getattr__(name: str) -> object:
    if name not in _packages:
        known = () if name.startswith("_") else __all__
        hint = f"In module {__name__!r}."
        raise AttributeError(unknown_name("attribute", name, known, hint=hint), name=name)
    return importlib.import_module(f"{__name__}.{name}")


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
