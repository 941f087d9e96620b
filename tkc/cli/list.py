"""``tkc list``: the catalogue."""

from __future__ import annotations

import click

from tkc.cli._shared import json_option, print_json, signature


@click.command("list")
@click.argument("names", nargs=-1, metavar="[SPEC|FAMILY]...")
@json_option
def list_specs(names: tuple[str, ...], as_json: bool) -> int:
    """Print the catalogue: every kernel, its backends and its parameters.

    \b
    Examples:
      tkc list
      tkc list moe --json
    """
    from tkc.registry import load_catalog

    entries = load_catalog().select(names)
    if as_json:
        print_json(
            [
                {
                    "spec": entry.spec.name,
                    "summary": entry.spec.summary,
                    "backends": [backend.value for backend in entry.backends],
                    "parameters": [parameter.name for parameter in entry.spec.parameters],
                }
                for entry in entries
            ]
        )
        return 0
    width = max((len(entry.spec.name) for entry in entries), default=0)
    for entry in entries:
        backends = ",".join(backend.value for backend in entry.backends)
        click.echo(f"{entry.spec.name:{width}}  {backends:15}  {entry.spec.summary}")
        click.echo(f"{'':{width}}  {'':15}  {signature(entry.spec)}")
    click.echo(f"{len(entries)} kernels; `tkc show SPEC` tells more", err=True)
    return 0
