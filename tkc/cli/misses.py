"""``tkc misses``: what jobs asked for and did not find, over all nodes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING

import click

from tkc.cli._shared import json_option, print_json, user_store_path
from tkc.errors import TkcError

if TYPE_CHECKING:
    from cache_tools.misses import Summary
    from tkc.cache import MissLog

_FEW = 3


@click.command()
@click.argument("paths", nargs=-1, type=click.Path(path_type=Path, exists=True), metavar="[LOG|STORE]...")
@click.option(
    "--output", type=click.Path(path_type=Path, dir_okay=False), metavar="FILE", help="Write all of it as one log."
)
@json_option
def misses(paths: tuple[Path, ...], output: Path | None, as_json: bool) -> int:
    """Print what was asked for and not there: what, where, how often, and how long callers waited for it.

    Takes miss logs of any number of nodes, or their stores, and sums them up; without any, the user store's. Then
    `tkc build --from-misses` builds all of it, and a second run of the same job has none.

    \b
    Examples:
      tkc misses
      tkc misses node-*/misses.jsonl --output all.jsonl && tkc build --from-misses all.jsonl
    """
    from cache_tools.misses import log_at
    from cache_tools.misses import misses as summed

    logs = [log_at(path) for path in paths or (user_store_path(),)]
    found = summed(*logs)
    if output is not None:
        _write(output, logs)
    if as_json:
        wanted = [{**asdict(one), "command": one.command} for one in found.wanted]
        print_json({"logs": [str(log.path) for log in logs], "damaged_lines": found.damaged_lines, "misses": wanted})
    else:
        _print(found)
    return 0


def _print(found: Summary) -> None:
    for one in found.wanted:
        more = f" and {len(one.where) - _FEW} more" if len(one.where) > _FEW else ""
        click.echo(f"{one.count:6} times {one.cost_s:8.0f} s  {one.command}")
        click.echo(f"{'':23} on {', '.join(one.where[:_FEW])}{more}")
        for reason in one.reasons:
            click.echo(f"{'':23} {reason}")
    times, cost_s = sum(one.count for one in found.wanted), sum(one.cost_s for one in found.wanted)
    click.echo(
        f"{len(found.wanted)} artifacts missed, {times} times, {cost_s:.0f} s waited; "
        f"{found.damaged_lines} lines could not be read",
        err=True,
    )


def _write(path: Path, logs: Sequence[MissLog]) -> None:
    """Write the logs one after another, as they are."""
    if path.exists():
        raise TkcError(f"{path} is there already; name a file that is not")
    parts = [part for log in logs for part in (log.path.with_name(log.path.name + ".1"), log.path) if part.is_file()]
    try:
        path.write_bytes(b"\n".join(part.read_bytes() for part in parts))
    except OSError as error:
        raise TkcError(f"{path} cannot be written: {error.strerror or error}") from error
