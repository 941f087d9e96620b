"""``tkc diff``: two wheels or stores, artifact by artifact."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from tkc.cli._shared import json_option, print_json

if TYPE_CHECKING:
    from tkc.wheel.diff import ArtifactDiff

_PATH = click.Path(path_type=Path, exists=True)


@click.command()
@click.argument("a", type=_PATH)
@click.argument("b", type=_PATH)
@click.option("--why", is_flag=True, help="Say too which inputs of a changed artifact differ.")
@json_option
def diff(a: Path, b: Path, why: bool, as_json: bool) -> int:
    """Compare two wheels or stores: the same, changed code, changed resources (registers and spills side by side).

    Exits with 0 if all artifacts are the same in both, else with 1.

    \b
    Examples:
      tkc diff old/tkc_kernels_sm90-0.1.0-….whl new/tkc_kernels_sm90-0.2.0-….whl
      tkc diff "$(tkc cache dir)" /mnt/shared/tkc --why
    """
    from tkc.wheel.diff import Change, diff_stores
    from tkc.wheel.reading import open_store

    with ExitStack() as stack:
        found = diff_stores(*(stack.enter_context(open_store(path)) for path in (a, b)))
    counts = Counter(one.change for one in found)
    if as_json:
        changed = [_as_json(one) for one in found if one.change is not Change.SAME]
        print_json({"counts": {change.value: counts[change] for change in Change}, "changed": changed})
    else:
        _print([one for one in found if one.change is not Change.SAME], why=why)
        click.echo(", ".join(f"{counts[change]} {change.value}" for change in Change))
    return 0 if counts[Change.SAME] == len(found) else 1


def _print(changed: Sequence[ArtifactDiff], *, why: bool) -> None:
    for one in changed:
        click.echo(f"{one.change.value:10} {one.title}")
        for symbol, facts in one.kernels:
            told = "  ".join(f"{name} {_word(left)} → {_word(right)}" for name, (left, right) in facts.items())
            click.echo(f"{'':10}   {symbol}: {told}")
        for field in one.inputs if why else ():
            click.echo(f"{'':10}   {field.field}: {_word(field.ours)} → {_word(field.theirs)}")


def _word(value: Any) -> str:
    return "-" if value is None else str(value)


def _as_json(one: ArtifactDiff) -> dict[str, Any]:
    return {
        "artifact": one.title,
        "change": one.change.value,
        "kernels": [
            {"symbol": symbol, **{name: {"a": left, "b": right} for name, (left, right) in facts.items()}}
            for symbol, facts in one.kernels
        ],
        "inputs": [{"field": field.field, "a": field.ours, "b": field.theirs} for field in one.inputs],
    }
