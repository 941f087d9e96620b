"""Every error that tkc raises on purpose.

::

    TkcError
    ├── SpecError              a kernel spec is malformed, incomplete or unknown
    ├── TargetError            unknown target or host, or not this machine's
    ├── ToolchainError         a tool is missing or too old; says how to get it
    ├── CompileError           a stage failed                  .action .stage .log_path
    ├── ArgumentError          launch arguments do not match   .argument
    ├── ArtifactMissingError   no artifact, policy is error    .request .reasons
    ├── LoadError              wrong architecture or driver, inside a graph capture
    └── StoreError             the store cannot be read or written
        ├── StoreDamagedError  an entry is not what its digest says
        ├── StoreReadOnlyError nothing may be written here
        └── StoreFullError     no space left, or quota reached

A message says what happened, what was expected, what was given, and what to do next.
The command line prints it as it is, without a traceback, and exits with 1.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Sequence
from pathlib import Path


class TkcError(Exception):
    """Base of every error that tkc raises on purpose."""


class SpecError(TkcError):
    """A kernel spec is malformed, incomplete or unknown, or a parameter of it is."""


class TargetError(TkcError):
    """A target or host that tkc does not know, or that is not this machine's."""


class ToolchainError(TkcError):
    """A compiler or one of its parts is missing or too old."""


class CompileError(TkcError):
    """A stage of one compile failed.

    Attributes:
        action: readable name of what was being compiled.
        stage: ``lower``, ``assemble`` or ``link``.
        log_path: where the stage's full output was kept, if it was.
    """

    def __init__(self, message: str, *, action: str, stage: str, log_path: Path | None = None) -> None:
        super().__init__(message)
        self.action = action
        self.stage = stage
        self.log_path = log_path


class ArgumentError(TkcError, ValueError):
    """A launch argument does not match the spec; `argument` names it."""

    def __init__(self, message: str, *, argument: str | None = None) -> None:
        super().__init__(message)
        self.argument = argument


class ArtifactMissingError(TkcError):
    """No artifact answers a request, and the policy forbids compiling one.

    Attributes:
        request: the request, readable.
        reasons: one line for each place that was asked.
    """

    def __init__(self, message: str, *, request: str, reasons: Sequence[str] = ()) -> None:
        super().__init__(message)
        self.request = request
        self.reasons = tuple(reasons)


class LoadError(TkcError):
    """An artifact is there and must not or cannot be loaded."""


class StoreError(TkcError):
    """The store cannot be read, written or trusted."""


class StoreDamagedError(StoreError):
    """An entry of the store is not what its digest says."""


class StoreReadOnlyError(StoreError):
    """The store, or its file system, takes no writes."""


class StoreFullError(StoreError):
    """The file system of the store has no space left."""


def unknown_name(kind: str, name: str, known: Iterable[str], *, hint: str = "") -> str:
    """Say that `name` is no `kind`, with the nearest known name, the list, and a next step."""
    names = sorted(known)
    near = difflib.get_close_matches(name, names, n=1, cutoff=0.5)
    lines = [f"unknown {kind} {name!r}."]
    if near:
        lines.append(f"Did you mean {near[0]!r}?")
    lines.append(f"Known: {', '.join(names) if names else 'none'}.")
    if hint:
        lines.append(hint)
    return " ".join(lines)
