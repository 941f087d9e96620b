"""``tkc coverage``: proof, with no device, that no call of a grid's models misses; or the first call that does."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import click

from tkc.cli._shared import (
    dims_of,
    grid_name,
    grid_option,
    host_option,
    json_option,
    print_json,
    target_option,
    targets_or_default,
)
from tkc.errors import TkcError
from tkc.model import Host, Request, Target

if TYPE_CHECKING:
    from tkc.cache import Store
    from tkc.coverage import Coverage, Holds


@click.command()
@target_option
@host_option
@grid_option()
@click.option("--installed", is_flag=True, help="Look every artifact up in the layers of this machine too.")
@click.option(
    "--wheel",
    type=click.Path(path_type=Path, exists=True, dir_okay=False),
    metavar="FILE",
    help="Look every artifact up in this wheel too.",
)
@click.option(
    "--output", type=click.Path(path_type=Path, dir_okay=False), metavar="FILE", help="Write the certificate."
)
@click.option("--all", "every", is_flag=True, help="Go on after the first hole.")
@json_option
def coverage(
    target: Target | None,
    host: Host | None,
    grid: str | None,
    model: Path | None,
    installed: bool,
    wheel: Path | None,
    output: Path | None,
    every: bool,
    as_json: bool,
) -> int:
    """Prove that whatever calls a job with these dimensions makes, the kernels that a grid builds serve them.

    Walks every operator as users call it, on tensors without data, and finds where the kernels that it asks for change
    along each size. Needs torch, of any build; no device, no compiler. If there is a hole, exits with 1 at the first.

    \b
    Examples:
      tkc coverage --grid deepseek-v3 --target sm90
      tkc coverage --grid deepseek-v3 --target sm90 --wheel dist/tkc_kernels_sm90-….whl --output certificate.json
      tkc coverage --model config.json --target cpu --installed --all
    """
    from tkc.coverage import cover

    if installed and wheel:
        raise click.UsageError("give --installed or --wheel, not both")
    chosen = targets_or_default([target] if target else [])[0]
    where = host or Host.this_machine()
    with _answers(installed=installed, wheel=wheel) as holds:
        found = cover(
            dims_of(grid, model), chosen, where, grid=grid_name(grid, model), holds=holds, first_only=not every
        )
    certificate = found.certificate()
    if output is not None:
        _write(output, certificate)
    if as_json:
        print_json(certificate)
    else:
        _print(found)
    return 1 if found.holes else 0


@contextmanager
def _answers(*, installed: bool, wheel: Path | None) -> Iterator[Holds | None]:
    """Where artifacts are looked up: nowhere, in the layers, or in a wheel."""
    if installed:
        from tkc.runtime import layers

        yield lambda request: _described(layers().resolve(request.key))
    elif wheel is not None:
        from tkc.wheel.reading import open_store

        with open_store(wheel) as store:
            yield lambda request: _in_store(store, request)
    else:
        yield None


def _in_store(store: Store, request: Request) -> Mapping[str, str] | str:
    return _described(store.resolve(request.key))


def _described(found: object) -> Mapping[str, str] | str:
    from tkc.cache import Hit

    if not isinstance(found, Hit):
        return str(getattr(found, "reason", found)).replace("\n", "; ")
    return {"action": str(found.manifest.key), "library": str(found.manifest.file("kernel.so").digest)}


def _write(path: Path, certificate: Mapping[str, object]) -> None:
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(json.dumps(certificate, indent=1, sort_keys=True) + "\n")
    except OSError as error:
        raise TkcError(f"certificate {path} cannot be written: {error.strerror or error}") from error


def _print(found: Coverage) -> None:
    for kernel in found.kernels:
        click.echo(f"{kernel.method:10} {len(kernel.artifacts):4} artifacts  {kernel.spec}")
    for hole in found.holes:
        click.echo(f"hole       {hole}")
    calls, sets = sum(walk.looked_at for walk in found.walks), len(found.walks)
    verdict = "no call misses" if not found.holes else "not covered"
    click.echo(
        f"{', '.join(found.models)} on {found.target}: {verdict}; {calls} calls in {sets} sets were walked, "
        f"certificate {found.certificate()['digest']}",
    )
