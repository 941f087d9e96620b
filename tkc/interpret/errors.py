"""What interpreting can raise.

::

    InterpretError            the program cannot be interpreted, or did what no program may do
    ├── UnsupportedError      an operation that the interpreter does not know   .operation .statement
    └── FaultError            the sanitizer, or a device assertion, found faults  .reports
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from tkc.errors import TkcError

if TYPE_CHECKING:
    from tkc.interpret.sanitizer import Report


class InterpretError(TkcError):
    """A program cannot be interpreted, or did what no program may do.

    Attributes:
        statement: the statement, as TileLang prints it; empty where there is none yet.
    """

    def __init__(self, message: str, *, statement: str = "") -> None:
        super().__init__(message)
        self.statement = statement

    def at(self, kernel: str, statement: str) -> InterpretError:
        """The same error, saying which kernel and statement it came from."""
        if self.statement:
            return self
        self.statement = statement
        self.args = (f"{kernel}: {self.args[0]}\n    in: {statement}",)
        return self


class UnsupportedError(InterpretError):
    """An operation that the interpreter does not know. It names it, and the statement that holds it."""

    def __init__(self, operation: str, *, statement: str = "") -> None:
        super().__init__(f"the interpreter does not support {operation}", statement=statement)
        self.operation = operation


class FaultError(InterpretError):
    """Faults that running the program showed; `reports` holds the first of each kind and statement."""

    def __init__(self, message: str, reports: Sequence[Report]) -> None:
        super().__init__(message, statement="several")
        self.reports = tuple(reports)
