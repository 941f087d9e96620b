"""``tkc check``: every variant's numbers against its reference."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from tkc.cli._shared import grid_option, json_option, print_json, targets_option
from tkc.errors import TkcError
from tkc.model import ModelDims, Target

if TYPE_CHECKING:
    from tkc.compare import CheckResult

_INTERPRETED = ("sm90", "sm100", "ascend950", "cpu")


@click.command()
@click.argument("names", nargs=-1, metavar="[SPEC|FAMILY]...")
@targets_option
@grid_option(default="smoke")
@click.option("--device", metavar="DEVICE", help="Run what is built, through the loader, on cpu, cuda, cuda:1 …")
@click.option("--sanitize", is_flag=True, help="Also look for races, stray accesses, unwritten reads, overflow.")
@click.option("--seed", type=int, default=0, show_default=True, help="Of the random sample inputs.")
@json_option
def check(
    names: tuple[str, ...],
    targets: tuple[Target, ...],
    grid: str | None,
    model: Path | None,
    device: str | None,
    sanitize: bool,
    seed: int,
    as_json: bool,
) -> int:
    """Run kernels on their references' sample inputs and print the error and the tolerance of each output.

    Without --device nothing is compiled and no device is needed: variants are interpreted on the CPU.
    Exits with 1 if an output is outside its tolerance or a variant cannot run.

    \b
    Examples:
      tkc check
      tkc check moe.topk_gate --target sm90 --sanitize
      tkc check quant --device cuda:0 --grid deepseek-v3
    """
    from tkc.cli._shared import dims_of

    if device and (targets or sanitize):
        raise click.UsageError("--device runs what was built for that device: no --target and no --sanitize with it")
    dims = dims_of(grid, model)
    if device:
        results = _on_device(names, dims, device, seed)
    else:
        chosen = targets or tuple(Target.parse(name) for name in _INTERPRETED)
        results = _interpreted(names, chosen, dims, seed, sanitize)
    return _report(results, as_json=as_json)


def _interpreted(
    names: Sequence[str], targets: Sequence[Target], dims: tuple[ModelDims, ...], seed: int, sanitize: bool
) -> Iterator[CheckResult]:
    from tkc.interpret.check import check as interpret
    from tkc.registry import load_catalog

    return interpret(load_catalog(), names, targets, dims, seed=seed, sanitize=sanitize)


def _on_device(names: Sequence[str], dims: tuple[ModelDims, ...], device: str, seed: int) -> Iterator[CheckResult]:
    from tkc.registry import load_catalog
    from tkc.runtime.check import check_loaded
    from tkc.runtime.device import device_info

    backend = device_info(device).target.backend
    for entry in load_catalog().select(tuple(names)):
        if backend in entry.backends:
            for specialization in entry.spec.specializations(dims):
                yield from check_loaded(entry, specialization, device, seed)


def _report(results: Iterable[CheckResult], *, as_json: bool) -> int:
    """Print a line for each specialization and output as soon as it is complete."""
    groups: dict[tuple[str, str, str], list[CheckResult]] = defaultdict(list)
    last = None
    for result in results:
        key = str(result.specialization), result.variant, result.output
        groups[key].append(result)
        if not as_json and last is not None and last[:2] != key[:2]:
            _print_groups(groups, last[:2])
        last = key
    if not as_json and last is not None:
        _print_groups(groups, last[:2])
    failed = sum(any(not result.ok for result in group) for group in groups.values())
    if as_json:
        print_json([_as_json(key, group) for key, group in groups.items()])
    else:
        click.echo(f"{len(groups)} outputs checked, {failed} failed", err=True)
    if not groups:
        raise TkcError("nothing was checked: no selected kernel has a variant or a call for these targets and grid")
    return 1 if failed else 0


def _print_groups(groups: dict[tuple[str, str, str], list[CheckResult]], which: tuple[str, str]) -> None:
    for (specialization, variant, output), group in groups.items():
        if (specialization, variant) == which:
            state = "ok    " if all(result.ok for result in group) else "FAILED"
            click.echo(f"{state} {specialization} {variant}: {output or 'not run'} {_error(group)}")
            for result in [result for result in group if not result.ok][:3]:
                click.echo(
                    f"         sample {result.sample}: {result.wrong} of {result.elements} wrong; {result.detail}"
                )


def _error(group: Sequence[CheckResult]) -> str:
    tolerance = group[0].tolerance
    allowed = f"rtol {tolerance.rtol:g}, atol {tolerance.atol:g}" if tolerance.rtol or tolerance.atol else "bitwise"
    worst = max(result.max_error for result in group)
    return f"max error {worst:.3g} ({allowed}), {len(group)} samples"


def _as_json(key: tuple[str, str, str], group: Sequence[CheckResult]) -> dict[str, Any]:
    specialization, variant, output = key
    return {
        "specialization": specialization,
        "variant": variant,
        "output": output,
        "ok": all(result.ok for result in group),
        "max_error": max(result.max_error for result in group),
        "rtol": group[0].tolerance.rtol,
        "atol": group[0].tolerance.atol,
        "samples": len(group),
        "failures": [f"sample {result.sample}: {result.detail}" for result in group if not result.ok],
    }
