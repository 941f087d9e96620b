"""Run a traced TileLang program on the CPU, tile by tile, and look for faults in it.

The package is callable, so that ``tkc.interpret(prim_func, *tensors)`` works whether or not something imported
the package before: it is `interpret.interpret`.
"""

from __future__ import annotations

import sys
from types import ModuleType
from typing import Any

from tkc.interpret.errors import FaultError, InterpretError, UnsupportedError
from tkc.interpret.program import Program, interpret
from tkc.interpret.sanitizer import Report

__all__ = ["FaultError", "InterpretError", "Program", "Report", "UnsupportedError", "interpret"]


class _CallablePackage(ModuleType):
    def __call__(self, prim_func: Any, *arguments: Any, **options: Any) -> None:
        interpret(prim_func, *arguments, **options)


sys.modules[__name__].__class__ = _CallablePackage
