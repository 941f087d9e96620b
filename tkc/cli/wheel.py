"""``tkc wheel``: a prebuilt wheel for one target and host, audited; or the audit of any wheel."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from tkc import __version__
from tkc.cli._shared import (
    dims_of,
    grid_name,
    grid_option,
    host_option,
    json_option,
    print_json,
    size_text,
    target_option,
    targets_or_default,
    user_store_path,
)
from tkc.errors import TkcError
from tkc.model import Host, Target

if TYPE_CHECKING:
    from tkc.build import Outcome
    from tkc.cache import Store
    from tkc.wheel.audit import Audit


@click.command()
@click.argument("names", nargs=-1, metavar="[SPEC|FAMILY]...")
@target_option
@host_option
@grid_option()
@click.option(
    "--output",
    type=click.Path(path_type=Path, file_okay=False),
    default=Path("dist"),
    show_default=True,
    metavar="DIR",
    help="Where the wheel is written (made if missing).",
)
@click.option("--version", "version", metavar="VERSION", help="Of the wheel. Default: tkc's own.")
@click.option("--max-size", metavar="SIZE", default="20MB", show_default=True, help="Budget of the wheel's file.")
@click.option(
    "--check",
    "checked",
    type=click.Path(path_type=Path, exists=True, dir_okay=False),
    metavar="FILE",
    help="Audit this wheel instead of making one.",
)
@click.option("-j", "--jobs", type=click.IntRange(0), default=None, help="Compiles at a time. Default: one a core.")
@json_option
def wheel(
    names: tuple[str, ...],
    target: Target | None,
    host: Host | None,
    grid: str | None,
    model: Path | None,
    output: Path,
    version: str | None,
    max_size: str,
    checked: Path | None,
    jobs: int | None,
    as_json: bool,
) -> int:
    """Build what the store lacks of a grid, and pack all of it into a wheel that is audited before it is shown.

    `pip install` of the wheel is all that a user does: the loader finds it and reads it in place. Exits with 1 if
    a compile or the audit fails; a wheel that fails is not left behind.

    \b
    Examples:
      tkc wheel --target sm90 --grid deepseek-v3
      tkc wheel --target sm100 --grid deepseek-v3 --host aarch64 --output wheels/
      tkc wheel --check dist/tkc_kernels_sm90-0.1.0-py3-none-manylinux_2_28_x86_64.whl
    """
    from cache_tools.units import parse_size

    _require_library()
    from tkc.wheel.audit import audit

    budget = parse_size(max_size)
    if checked is not None:
        return _report(audit(checked, max_bytes=budget), as_json=as_json)
    chosen = targets_or_default([target] if target else [])[0]
    where = host or Host.this_machine()
    made = _make(names, chosen, where, grid, model, version or __version__, output, jobs, quiet=as_json, budget=budget)
    return _report(made, as_json=as_json)


def _require_library() -> None:
    try:
        import wheel.wheelfile  # noqa: F401
    except ModuleNotFoundError as error:
        raise TkcError(
            f"`tkc wheel` needs {error.name}, which is not installed: pip install 'tilelang-tkc[wheel]'"
        ) from error


def _make(
    names: tuple[str, ...],
    target: Target,
    host: Host,
    grid: str | None,
    model: Path | None,
    version: str,
    output: Path,
    jobs: int | None,
    *,
    quiet: bool,
    budget: int,
) -> Audit:
    """Build, pack aside, audit, and only then move the wheel into `output`."""
    from dataclasses import replace

    from tkc.cache import Store
    from tkc.wheel.audit import audit
    from tkc.wheel.pack import Packing, pack

    with _folder_in(output) as aside:
        store = Store(user_store_path(), writable=True)
        outcomes = _build(names, target, host, grid, model, store, jobs, quiet=quiet)
        packing = Packing(
            target=target,
            host=host,
            version=version,
            grid=grid_name(grid, model),
            specs=names,
            dims=dims_of(grid, model),
            artifacts=[(one.planned.request, one.manifest) for one in outcomes if one.manifest],
            provenance=_provenance(outcomes),
        )
        path = pack(packing, store, aside)
        found = audit(path, max_bytes=budget)
        final = output / path.name
        if found.ok:
            path.replace(final)
    return replace(found, path=final)


@contextmanager
def _folder_in(output: Path) -> Iterator[Path]:
    """A folder inside `output`, for as long as the block runs. Raises TkcError if nothing can be written there."""
    import tempfile

    try:
        output.mkdir(parents=True, exist_ok=True)
        folder = tempfile.TemporaryDirectory(dir=output, prefix=".tkc-wheel-")
    except OSError as error:
        raise TkcError(f"{output} cannot be written: {error.strerror or error}. Give another --output") from error
    with folder as path:
        yield Path(path)


def _build(
    names: tuple[str, ...],
    target: Target,
    host: Host,
    grid: str | None,
    model: Path | None,
    store: Store,
    jobs: int | None,
    *,
    quiet: bool,
) -> list[Outcome]:
    """Every artifact of the grid, built where it is missing; what a variant refuses for the target is left out.

    Raises TkcError if a compile fails.
    """
    from tkc import build as builder
    from tkc.cli.build import _failures, _reporter, select_units
    from tkc.config import Settings

    planned = builder.plan(select_units(names, [target], host, grid, model), store)
    with _reporter(len(planned), quiet=quiet) as report:
        wanted_jobs = Settings.from_env().jobs if jobs is None else jobs
        running = builder.build(planned, store, jobs=wanted_jobs, on_event=report.event)
        outcomes = [report.outcome(outcome) for outcome in running]
    if failed := [outcome for outcome in outcomes if outcome.status == "failed"]:
        raise TkcError(f"no wheel: {len(failed)} of {len(outcomes)} artifacts failed" + "".join(_failures(failed)))
    for line in _failures([outcome for outcome in outcomes if outcome.status == "refused"]):
        click.echo(line, err=True)
    return [outcome for outcome in outcomes if outcome.manifest is not None]


def _provenance(outcomes: Sequence[Outcome]) -> dict[str, str]:
    """Commit of the packages whose kernels are packed, and whether anything in them was changed since."""
    from tkc.build import provenance

    folders = sorted({outcome.planned.unit.entry.folder.parent.parent for outcome in outcomes})
    facts = [dict(provenance(folder)) for folder in folders]
    merged = {name: " ".join(dict.fromkeys(one[name] for one in facts if name in one)) for name in facts[0]}
    return merged | ({"dirty": "yes"} if any(one.get("dirty") == "yes" for one in facts) else {})


def _report(found: Audit, *, as_json: bool) -> int:
    if as_json:
        print_json(_as_json(found))
        return 0 if found.ok else 1
    for problem in found.problems:
        click.echo(f"failed   {problem}")
    if contents := found.contents:
        specs = Counter(item.fields["spec"] for item in contents.items)
        for spec, count in sorted(specs.items()):
            size = sum(item.size_bytes for item in contents.items if item.fields["spec"] == spec)
            click.echo(f"{count:6} artifacts {size_text(size):>9}  {spec}")
        models = ", ".join(str(model.get("name")) for model in contents.models)
        unpacked = sum(item.size_bytes for item in contents.items)
        click.echo(
            f"{len(contents.items)} artifacts for {contents.target} on {contents.host}: {models}; "
            f"commit {contents.provenance.get('commit', 'unknown')[:12]}"
            f"{' and changes' if contents.provenance.get('dirty') == 'yes' else ''}; {size_text(unpacked)} unpacked"
        )
    verdict = "passes the audit" if found.ok else f"fails the audit: {len(found.problems)} problems"
    click.echo(f"{found.path}: {size_text(found.size_bytes)}, {verdict}")
    return 0 if found.ok else 1


def _as_json(found: Audit) -> dict[str, Any]:
    contents = found.contents
    return {
        "wheel": str(found.path),
        "size_bytes": found.size_bytes,
        "ok": found.ok,
        "problems": [asdict(problem) for problem in found.problems],
        "contents": None
        if contents is None
        else {
            "target": contents.target,
            "host": contents.host,
            "grid": contents.grid,
            "models": [model.get("name") for model in contents.models],
            "provenance": dict(contents.provenance),
            "artifacts": [
                {"title": item.title, "size_bytes": item.size_bytes, "library": str(item.library)}
                for item in contents.items
            ],
        },
    }
