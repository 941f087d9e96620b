"""What several commands share: options, parsing of ``key=value``, selection of a grid, printing."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, TypeVar

import click

from tkc.config import Settings
from tkc.errors import StoreError, TkcError
from tkc.model import HOST_NAMES, TARGET_NAMES, Host, KernelSpec, ModelDims, Target, Value

F = TypeVar("F", bound=Callable[..., Any])

DEFAULT_GRID = "deepseek-v3"


def parsed(parse: Callable[[str], Any]) -> Callable[[click.Context, click.Parameter, Any], Any]:
    """A callback that reads an option's word, or words, and turns a refusal into a usage error."""

    def callback(ctx: click.Context, param: click.Parameter, given: Any) -> Any:
        try:
            if isinstance(given, tuple):
                return tuple(parse(word) for word in given)
            return None if given is None else parse(given)
        except TkcError as error:
            raise click.BadParameter(str(error), ctx, param) from None

    return callback


def targets_option(function: F) -> F:
    """``--target``, repeatable."""
    return click.option(
        "--target",
        "targets",
        callback=parsed(Target.parse),
        multiple=True,
        metavar="NAME",
        help=f"{', '.join(TARGET_NAMES)}, or any smNN. May be repeated. Default: this machine's device, else cpu.",
    )(function)


def target_option(function: F) -> F:
    """``--target``, once."""
    return click.option(
        "--target",
        callback=parsed(Target.parse),
        metavar="NAME",
        help=f"{', '.join(TARGET_NAMES)}, or any smNN. Default: this machine's device, else cpu.",
    )(function)


def host_option(function: F) -> F:
    """``--host``."""
    return click.option(
        "--host",
        callback=parsed(Host.parse),
        metavar="NAME",
        help=f"CPU architecture of the machines that load the artifacts: {', '.join(HOST_NAMES)}. Default: this one's.",
    )(function)


def grid_option(default: str = DEFAULT_GRID) -> Callable[[F], F]:
    """``--grid`` and ``--model``."""

    def decorate(function: F) -> F:
        function = click.option(
            "--model",
            type=click.Path(path_type=Path, exists=True, dir_okay=False),
            metavar="FILE",
            is_eager=True,
            help="Derive the dimensions from a model's config.json instead of a named grid.",
        )(function)
        return click.option(
            "--grid", metavar="NAME", callback=_or_default(default), help=f"A named grid. Default: {default}."
        )(function)

    return decorate


def _or_default(default: str) -> Callable[[click.Context, click.Parameter, str | None], str | None]:
    """Give the default grid unless --model was given; click parses --model first, since it is eager."""

    def callback(ctx: click.Context, param: click.Parameter, given: str | None) -> str | None:
        return given or (None if ctx.params.get("model") else default)

    return callback


def json_option(function: F) -> F:
    """``--json``."""
    return click.option("--json", "as_json", is_flag=True, help="Print JSON on standard output.")(function)


def dims_of(grid: str | None, model: Path | None) -> tuple[ModelDims, ...]:
    """The model dimensions that the options select. Raises UsageError for both at once."""
    from tkc.grids import load_grid, load_model

    if grid and model:
        raise click.UsageError("give --grid or --model, not both")
    return (load_model(model),) if model else load_grid(grid or DEFAULT_GRID)


def grid_name(grid: str | None, model: Path | None) -> str:
    """What that selection is called: the grid's name, or the configuration file's."""
    return model.name if model else grid or DEFAULT_GRID


def targets_or_default(targets: Sequence[Target]) -> tuple[Target, ...]:
    """The targets given, without repeats, or this machine's."""
    from tkc.hardware import default_target

    return tuple(dict.fromkeys(targets)) or (default_target(),)


def split_names(words: Sequence[str]) -> tuple[tuple[str, ...], dict[str, Value]]:
    """Part spec names from ``key=value`` words."""
    names = tuple(word for word in words if "=" not in word)
    return names, parse_params([word for word in words if "=" in word])


def parse_params(words: Sequence[str]) -> dict[str, Value]:
    """Read ``key=value`` words; a value is an integer, true, false, none, or text."""
    return {key: _value(text) for key, _, text in (word.partition("=") for word in words)}


def _value(text: str) -> Value:
    constants: dict[str, Value] = {"true": True, "false": False, "none": None}
    if text.lower() in constants:
        return constants[text.lower()]
    try:
        return int(text)
    except ValueError:
        return text


def user_store_path() -> Path:
    """Where the user store is. Raises StoreError if there is no place for one."""
    settings = Settings.from_env()
    if settings.cache_dir is None:
        raise StoreError(
            "there is no place for a store: HOME and XDG_CACHE_HOME are unset. Set TKC_CACHE_DIR to a folder"
        )
    return settings.cache_dir


def signature(spec: KernelSpec) -> str:
    """The parameters that a user writes after the spec's name."""
    return " ".join(
        parameter.name if parameter.default is parameter.empty else f"[{parameter.name}={parameter.default}]"
        for parameter in spec.parameters
    )


def print_json(value: Any) -> None:
    """Print one JSON document on standard output: indented on a terminal, else on one line.

    Indenting is done in Python, and takes longer for the artifacts of a grid than finding them in the store.
    """
    click.echo(json.dumps(value, indent=2 if sys.stdout.isatty() else None, default=str))


def size_text(size_bytes: float) -> str:
    """Bytes for people, such as ``41.2 KB`` (powers of 1000)."""
    for unit in ("B", "KB", "MB"):
        if size_bytes < 1000:
            return f"{size_bytes:.0f} {unit}" if unit == "B" else f"{size_bytes:.1f} {unit}"
        size_bytes /= 1000
    return f"{size_bytes:.1f} GB"
