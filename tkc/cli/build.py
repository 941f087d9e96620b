"""``tkc build``: compile what a grid needs and the store lacks."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from tkc.cli._shared import (
    dims_of,
    grid_option,
    host_option,
    json_option,
    print_json,
    size_text,
    split_names,
    targets_option,
    targets_or_default,
    user_store_path,
)
from tkc.config import Settings
from tkc.errors import SpecError, TargetError
from tkc.model import Host, Manifest, Target

if TYPE_CHECKING:
    from cache_tools.remote import Remote
    from tkc.build import Outcome, Planned
    from tkc.cache import Store
    from tkc.compiler import Unit
    from tkc.compiler.stages import Assembler


@click.command()
@click.argument("words", nargs=-1, metavar="[SPEC|FAMILY]... [KEY=VALUE]...")
@targets_option
@host_option
@grid_option()
@click.option("-j", "--jobs", type=click.IntRange(0), default=None, help="Compiles at a time. Default: one a core.")
@click.option("--emit", type=click.Choice(["source"]), help="Stop after lowering; needs no vendor compiler.")
@click.option(
    "--output",
    type=click.Path(path_type=Path, file_okay=False),
    metavar="DIR",
    help="Store to write to, instead of the user store (made if missing).",
)
@click.option(
    "--from-lowered",
    type=click.Path(path_type=Path, exists=True, file_okay=False),
    metavar="DIR",
    help="Go on from what `--emit source --output DIR` lowered; needs no tilelang.",
)
@click.option(
    "--from-misses",
    type=click.Path(path_type=Path, exists=True, dir_okay=False),
    metavar="FILE",
    help="Build what jobs asked for and did not find: a miss log (see `tkc cache misses`).",
)
@click.option("--assembler", type=click.Choice(["nvrtc", "nvcc"]), help="CUDA device compiler. Default: nvrtc.")
@click.option("--timeout", "timeout_s", type=float, default=600.0, show_default=True, help="Seconds for one compile.")
@click.option("--dry-run", is_flag=True, help="Print the plan: what would be compiled.")
@json_option
def build(
    words: tuple[str, ...],
    targets: tuple[Target, ...],
    host: Host | None,
    grid: str | None,
    model: Path | None,
    jobs: int | None,
    emit: str | None,
    output: Path | None,
    from_lowered: Path | None,
    from_misses: Path | None,
    assembler: Assembler | None,
    timeout_s: float,
    dry_run: bool,
    as_json: bool,
) -> int:
    """Compile kernels ahead of time into the store; needs no device.

    Without SPEC: every kernel of the catalogue that has a variant for the target. With KEY=VALUE: that
    one call of one SPEC instead of a grid.

    \b
    Examples:
      tkc build --target sm90 --grid deepseek-v3
      tkc build moe --target sm90 --target sm100 -j 16
      tkc build moe.topk_gate num_experts=256 num_topk=8 --target sm90
      tkc build --target ascend950 --emit source --output lowered/
      tkc build --from-lowered lowered/
      tkc build --from-misses "$(tkc cache dir)/misses-v1/misses.jsonl"
    """
    from tkc import build as builder
    from tkc.cache import Store

    if from_lowered is not None and (emit or targets or model):
        raise click.UsageError("--from-lowered takes what was lowered: no --emit, --target or --model with it")
    if from_misses is not None and (from_lowered or targets or host or model):
        raise click.UsageError("--from-misses names targets and hosts itself: no --target, --host, --model with it")
    store = Store((output or user_store_path()).absolute(), writable=True)
    chosen_host = host or Host.this_machine()
    if from_lowered is not None:
        planned = builder.plan_from_lowered(Store(from_lowered.absolute()), words, chosen_host, store)
    elif from_misses is not None:
        planned = builder.plan(units_from_misses(from_misses, words, assembler), store)
    else:
        units = select_units(words, targets_or_default(targets), chosen_host, grid, model, assembler)
        planned = builder.plan(units, store)
    if dry_run:
        return _print_plan(planned, store, as_json=as_json, lower_only=emit == "source")
    started = time.monotonic()
    settings = Settings.from_env()
    with _reporter(len(planned), quiet=as_json) as report:
        running = builder.build(
            planned,
            store,
            jobs=settings.jobs if jobs is None else jobs,
            timeout_s=timeout_s,
            lower_only=emit == "source",
            on_event=report.event,
            upstream=_remote(settings),
        )
        finished = [report.outcome(outcome) for outcome in running]
    order = {item.action.key: index for index, item in enumerate(planned)}
    outcomes = sorted(finished, key=lambda outcome: order[outcome.planned.action.key])
    return _summarise(outcomes, store, time.monotonic() - started, as_json=as_json)


def _remote(settings: Settings) -> Remote | None:
    if not settings.remote:
        return None
    from cache_tools.remote import remote_from

    return remote_from(settings)


def select_units(
    words: Sequence[str],
    targets: Sequence[Target],
    host: Host,
    grid: str | None,
    model: Path | None,
    assembler: Assembler | None = None,
) -> list[Unit]:
    """Every artifact that the command line asks for. Raises SpecError if none matches."""
    from tkc.compiler import CompileOptions, Unit
    from tkc.registry import load_catalog

    names, params = split_names(words)
    entries = load_catalog().select(names)
    if params and len(entries) != 1:
        raise click.UsageError("KEY=VALUE needs exactly one SPEC")
    options = CompileOptions(assembler=assembler)
    dims = () if params else dims_of(grid, model)
    units = []
    for target in targets:
        supported = [entry for entry in entries if target.backend in entry.backends]
        if names and len(supported) < len(entries):
            next(entry for entry in entries if entry not in supported).require(target.backend)
        for entry in supported:
            chosen = [entry.spec.bind(**params)] if params else entry.spec.specializations(dims)
            units += [Unit(entry, specialization, target, host, options) for specialization in chosen]
    if not units:
        raise SpecError(
            f"nothing to build for {', '.join(map(str, targets))}: no selected kernel has a variant or a call there. "
            "`tkc list` shows which backends each has"
        )
    return units


def units_from_misses(path: Path, names: Sequence[str], assembler: Assembler | None = None) -> list[Unit]:
    """Every artifact that a miss log asks for, of the kernels that `names` selects.

    What the catalogue has no more (a kernel that was renamed, a value that is not legal any more) is said on
    standard error and left out.
    """
    from cache_tools.misses import wanted_in
    from tkc.compiler import CompileOptions, Unit
    from tkc.registry import load_catalog

    catalog = load_catalog()
    selected = {entry.spec.name for entry in catalog.select(tuple(names))}
    units: dict[str, Unit] = {}
    for wanted in wanted_in(path):
        try:
            entry, target = catalog.find(wanted.spec), Target.parse(wanted.target)
            entry.require(target.backend)
            specialization = entry.spec.specialization(wanted.specialization)
            unit = Unit(entry, specialization, target, Host.parse(wanted.host), CompileOptions(assembler=assembler))
        except (SpecError, TargetError) as error:
            click.echo(f"left out: {wanted.command}: {error}", err=True)
            continue
        if wanted.spec in selected:
            units[str(unit)] = unit
    return list(units.values())


def _print_plan(planned: Sequence[Planned], store: Store, *, as_json: bool, lower_only: bool) -> int:
    rows = [
        {
            "artifact": item.title,
            "key": str(item.action.key),
            "state": "hit" if store.lookup(item.action.key) else "missing",
        }
        for item in planned
    ]
    if as_json:
        print_json({"plan": rows})
    else:
        for row in rows:
            click.echo(f"{row['state']:8} {row['artifact']}")
        missing = sum(row["state"] == "missing" for row in rows)
        click.echo(f"{len(rows)} artifacts: {missing} would be compiled, {len(rows) - missing} are there", err=True)
    return 0


class _Report:
    """One line for each artifact that was compiled or failed, and a live bar where there is a terminal."""

    def __init__(self, bar: Any, quiet: bool) -> None:
        self._bar, self._quiet = bar, quiet

    def event(self, planned: Planned, message: Any) -> None:
        if self._bar is not None:
            self._bar.doing(f"{message.get('stage', message['event'])} {planned.title}")
        if message["event"] == "retry" and not self._quiet:
            click.echo(f"retry    {planned.title}: {message['problem']}", err=True)

    def outcome(self, outcome: Outcome) -> Outcome:
        if self._bar is not None:
            self._bar.advance()
        if not self._quiet and outcome.status != "hit":
            size = f"{size_text(_size(outcome.manifest)):>9}" if outcome.manifest else f"{'':9}"
            line = f"{outcome.status:8} {outcome.seconds:6.2f} s {size}  {outcome.planned.title}"
            (self._bar.print if self._bar is not None else click.echo)(line)
        return outcome


@contextmanager
def _reporter(total: int, *, quiet: bool) -> Iterator[_Report]:
    import sys

    if quiet or not sys.stderr.isatty():
        yield _Report(None, quiet)
        return
    from tkc.cli._progress import Bar

    with Bar("building", total) as bar:
        yield _Report(bar, quiet)


def _size(manifest: Manifest | None) -> int:
    return sum(file.size_bytes for file in manifest.files) if manifest else 0


def _summarise(outcomes: Sequence[Outcome], store: Store, seconds: float, *, as_json: bool) -> int:
    failed = [outcome for outcome in outcomes if outcome.status == "failed"]
    refused = [outcome for outcome in outcomes if outcome.status == "refused"]
    counts = {
        status: sum(outcome.status == status for outcome in outcomes)
        for status in ("hit", "built", "failed", "refused")
    }
    spills = [(outcome.planned.title, kernel) for outcome in outcomes for kernel in outcome.spilling_kernels]
    size_bytes = sum(_size(outcome.manifest) for outcome in outcomes)
    if as_json:
        print_json(
            {
                "store": str(store.root),
                "seconds": round(seconds, 3),
                "size_bytes": size_bytes,
                **counts,
                "spilling_kernels": [{"artifact": title, "kernel": kernel} for title, kernel in spills],
                "artifacts": [_outcome_json(outcome) for outcome in outcomes],
            }
        )
    else:
        for title, kernel in spills:
            click.echo(f"warning: {kernel} of {title} spills registers to local memory", err=True)
        for line in _failures(failed + refused):
            click.echo(line, err=True)
        click.echo(
            f"{len(outcomes)} artifacts: {counts['hit']} hit, {counts['built']} built, {counts['failed']} failed"
            f"{f', {len(refused)} refused by their variants' if refused else ''}; "
            f"{size_text(size_bytes)} in {store.root}, {seconds:.1f} s",
            err=True,
        )
    return 1 if failed or (refused and len(refused) == len(outcomes)) else 0


def _failures(failed: Sequence[Outcome]) -> Iterator[str]:
    """Say each distinct error once, with what it befell."""
    for error in dict.fromkeys(outcome.error for outcome in failed):
        befell = [outcome for outcome in failed if outcome.error == error]
        more = f" and {len(befell) - 1} more" if len(befell) > 1 else ""
        first = befell[0]
        yield f"\n{first.status}: {first.planned.title}{more}\n  {first.kind}: {error}\n  log: {first.log_path}"


def _outcome_json(outcome: Outcome) -> dict[str, Any]:
    unit = outcome.planned.unit
    return {
        "spec": unit.entry.spec.name,
        "specialization": dict(unit.specialization),
        "target": unit.target.name,
        "host": unit.host.arch,
        "status": outcome.status.value,
        "seconds": round(outcome.seconds, 3),
        "key": str(outcome.planned.action.key),
        "size_bytes": _size(outcome.manifest),
        "kernels": list(outcome.manifest.facts.get("kernels", [])) if outcome.manifest else [],
        "error": outcome.error or None,
        "log": str(outcome.log_path) if outcome.log_path else None,
    }
