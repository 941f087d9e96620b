"""``tkc cache``: thin commands over this package's functions."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path

import click

from tkc.cache import Store
from tkc.cli._shared import json_option, print_json, size_text, user_store_path


@click.group()
def cache() -> None:
    """Look after a store."""


@cache.command("dir")
@json_option
def dir_(as_json: bool) -> int:
    """Print where the user store is.

    \b
    Example:
      du -sh "$(tkc cache dir)"
    """
    path = user_store_path()
    if as_json:
        print_json({"cache_dir": str(path), "exists": path.is_dir()})
    else:
        click.echo(path)
    return 0


@cache.command("usage")
@click.option("--store", "root", type=click.Path(path_type=Path), metavar="DIR", help="Default: the user store.")
@json_option
def usage_(root: Path | None, as_json: bool) -> int:
    """Print how much a store holds, by target and family. Exits with 1 if entries are damaged.

    \b
    Examples:
      tkc cache usage
      tkc cache usage --store /mnt/shared/tkc --json
    """
    from cache_tools.usage import usage

    store = Store((root or user_store_path()).absolute())
    found = usage(store)
    if as_json:
        print_json({"store": str(store.root), **asdict(found)})
        return 1 if found.damaged else 0
    click.echo(f"{store.root}: {found.artifacts} artifacts, {found.blobs} blobs, {size_text(found.blob_bytes)}")
    for title, group in (("target", found.by_target), ("family", found.by_family)):
        for name, (count, size) in group.items():
            click.echo(f"  {title} {name:12} {count:6} artifacts {size_text(size):>10}")
    click.echo(f"  {found.stages} kept stage outputs, {found.damaged} damaged manifests")
    return 1 if found.damaged else 0
