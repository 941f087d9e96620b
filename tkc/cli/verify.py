"""``tkc verify``: whether artifacts are whole, and whether their inputs give them again."""

from __future__ import annotations

from collections import Counter
from dataclasses import asdict
from pathlib import Path

import click

from tkc.cli._shared import json_option, print_json, user_store_path
from tkc.config import Settings


@click.command()
@click.argument("path", type=click.Path(path_type=Path, exists=True), required=False, metavar="[STORE|WHEEL]")
@click.option("--rebuild", type=click.IntRange(0), default=0, metavar="N", help="Compile N artifacts again, of any.")
@click.option("--seed", type=int, default=0, show_default=True, help="Which N are chosen.")
@click.option("-j", "--jobs", type=click.IntRange(0), default=None, help="Compiles at a time. Default: one a core.")
@json_option
def verify(path: Path | None, rebuild: int, seed: int, jobs: int | None, as_json: bool) -> int:
    """Compare every artifact with its digests; with --rebuild, compile a sample again and compare bytes.

    Without a path: the user store. Exits with 1 if an artifact is damaged or comes out otherwise, or if none of the
    sample could be compared because sources or tools have changed since.

    \b
    Examples:
      tkc verify
      tkc verify dist/tkc_kernels_sm90-….whl --rebuild 5
    """
    from tkc.cache import Hit
    from tkc.reproduce import Verdict, sample
    from tkc.reproduce import rebuild as rebuilt
    from tkc.wheel.reading import open_store

    with open_store(path or user_store_path()) as store:
        refs = list(store.refs())
        damaged = [found.reason for ref in refs if not isinstance(found := store.lookup(ref.key), Hit)]
        chosen = sample(store, rebuild, seed) if rebuild else ()
        wanted_jobs = Settings.from_env().jobs if jobs is None else jobs
        again = list(rebuilt(store, chosen, jobs=wanted_jobs))
    counts = Counter(one.verdict for one in again)
    compared = counts[Verdict.SAME] + counts[Verdict.DIFFERS]
    good = not damaged and not counts[Verdict.DIFFERS] and not counts[Verdict.FAILED] and (compared or not chosen)
    if as_json:
        print_json({"artifacts": len(refs), "damaged": damaged, "rebuilt": [asdict(one) for one in again]})
        return 0 if good else 1
    for reason in damaged:
        click.echo(f"damaged       {reason}")
    for one in again:
        click.echo(f"{one.verdict.value:13} {one.title}{f': {one.detail}' if one.detail else ''}")
    told = ", ".join(f"{counts[verdict]} {verdict.value}" for verdict in Verdict) if chosen else "none compiled again"
    click.echo(f"{len(refs)} artifacts, {len(damaged)} damaged; {told}")
    return 0 if good else 1
