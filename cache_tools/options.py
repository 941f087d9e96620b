"""Options that several of the `tkc cache` commands share."""

from __future__ import annotations

import functools
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

import click

from cache_tools.selection import Selection
from cache_tools.units import parse_age, parse_size
from tkc.cache import Store
from tkc.cli._shared import parsed, user_store_path

F = TypeVar("F", bound=Callable[..., Any])

dry_run_option = click.option("--dry-run", is_flag=True, help="Print what would be done, and do nothing.")
store_option = click.option(
    "--store", "root", type=click.Path(path_type=Path, file_okay=False), metavar="DIR", help="Default: the user store."
)


def age_option(name: str, **more: Any) -> Callable[[F], F]:
    """An option that takes an age."""
    return click.option(name, callback=parsed(parse_age), metavar="AGE", **more)


def size_option(name: str, **more: Any) -> Callable[[F], F]:
    """An option that takes a size."""
    return click.option(name, callback=parsed(parse_size), metavar="SIZE", **more)


def selection_options(function: F) -> F:
    """``SPEC…``, ``--target``, ``--host``, ``--toolchain`` and ``--action``, given as ``selection``."""

    @functools.wraps(function)
    def with_selection(*args: Any, **values: Any) -> Any:
        selection = Selection(*(values.pop(name) for name in ("specs", "targets", "hosts", "toolchains", "keys")))
        return function(*args, selection=selection, **values)

    command: Any = with_selection
    for name, metavar, text in (
        ("--action keys", "KEY", "An action key, or how it starts."),
        ("--toolchain toolchains", "NAME[=VERSION]", "A component of the toolchain, or its digest."),
        ("--host hosts", "NAME", "The host that artifacts were built for."),
        ("--target targets", "NAME", "The target that artifacts were built for."),
    ):
        command = click.option(*name.split(), multiple=True, metavar=metavar, help=f"{text} May be repeated.")(command)
    selected: F = click.argument("specs", nargs=-1, metavar="[SPEC|FAMILY]...")(command)
    return selected


def open_store(root: Path | None, *, writable: bool = False) -> Store:
    """The store that a command is about. Says so if it is named and to be read, and there is none."""
    if root is not None and not writable and not root.is_dir():
        click.echo(f"note: there is no folder {root}; an absent store is an empty one", err=True)
    return Store((root or user_store_path()).absolute(), writable=writable)
