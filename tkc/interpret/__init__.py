"""Run a traced TileLang program on the CPU, tile by tile, and look for faults in it."""

from tkc.interpret.errors import FaultError, InterpretError, UnsupportedError
from tkc.interpret.program import Program, interpret
from tkc.interpret.sanitizer import Report

__all__ = ["FaultError", "InterpretError", "Program", "Report", "UnsupportedError", "interpret"]
