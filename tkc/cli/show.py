"""``tkc show``: one kernel, whole."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

import click

from tkc.cli._shared import (
    dims_of,
    grid_option,
    json_option,
    print_json,
    signature,
    target_option,
    user_store_path,
)
from tkc.model import KernelSpec, ScalarArg, Specialization, Target


@click.command()
@click.argument("name", metavar="SPEC")
@target_option
@grid_option()
@json_option
def show(name: str, target: Target | None, grid: str | None, model: Path | None, as_json: bool) -> int:
    """Print a kernel's arguments, axes, backends, the specializations of a grid, and what was built of them.

    For each artifact in the store: registers, spills, stack, shared memory and code size, as read from
    the binary.

    \b
    Examples:
      tkc show moe.topk_gate
      tkc show quant.per_token_cast --grid deepseek-v4 --target sm100 --json
    """
    from tkc.registry import load_catalog

    entry = load_catalog().find(name)
    chosen = entry.spec.specializations(dims_of(grid, model))
    built = _built(entry.spec.name, target)
    if as_json:
        print_json(
            {
                "spec": entry.spec.name,
                "summary": entry.spec.summary,
                "definition": entry.spec.definition,
                "backends": [backend.value for backend in entry.backends],
                "parameters": [parameter.name for parameter in entry.spec.parameters],
                "const": [asdict(axis) for axis in entry.spec.const],
                "var": [asdict(axis) for axis in entry.spec.var],
                "arguments": [asdict(argument) for argument in entry.spec.arguments(chosen[0])] if chosen else [],
                "specializations": [dict(one) for one in chosen],
                "built": built,
            }
        )
        return 0
    _print_spec(entry.spec, [backend.value for backend in entry.backends], chosen)
    _print_built(built)
    return 0


def _print_spec(spec: KernelSpec, backends: list[str], chosen: tuple[Specialization, ...]) -> None:
    click.echo(f"{spec.name}: {spec.summary}")
    click.echo(f"  defined by   {spec.definition}")
    click.echo(f"  backends     {', '.join(backends)}")
    click.echo(f"  parameters   {signature(spec)}")
    for const in spec.const:
        click.echo(f"  const        {const.name} in {', '.join(map(str, const.values))}: {const.why}")
    for var in spec.var:
        click.echo(f"  at launch    {var.name}: {var.doc}")
    if chosen:
        click.echo(f"  arguments of {chosen[0]}:")
        for argument in spec.arguments(chosen[0]):
            if isinstance(argument, ScalarArg):
                click.echo(f"    {argument.name}: {argument.dtype} scalar. {argument.doc}")
            else:
                shape = ", ".join(map(str, argument.shape))
                click.echo(f"    {argument.name}: {argument.dtype} [{shape}] {argument.role}. {argument.doc}")
    click.echo(f"  {len(chosen)} specializations in the grid:")
    for one in chosen:
        click.echo(f"    {' '.join(f'{key}={value}' for key, value in one.items())}")


def _built(spec: str, target: Target | None) -> list[dict[str, Any]]:
    from tkc.cache import Hit, Store

    store = Store(user_store_path())
    rows = []
    for ref in store.refs():
        fields = ref.fields
        if fields.get("spec") != spec or (target is not None and fields.get("target") != target.name):
            continue
        found = store.lookup(ref.key)
        if isinstance(found, Hit):
            rows.append(
                {
                    "target": fields["target"],
                    "host": fields["host"],
                    "specialization": fields["specialization"],
                    "key": str(ref.key),
                    "size_bytes": sum(file.size_bytes for file in found.manifest.files),
                    "kernels": list(found.manifest.facts.get("kernels", [])),
                }
            )
    return sorted(rows, key=lambda row: (row["target"], str(row["specialization"])))


_COLUMNS = {
    "registers": "regs",
    "spill_bytes": "spill B",
    "stack_bytes": "stack B",
    "static_shared_bytes": "smem B",
    "code_bytes": "code B",
}


def _print_built(built: list[dict[str, Any]]) -> None:
    if not built:
        click.echo("  nothing of it is in the store; `tkc build` compiles it")
        return
    click.echo("  in the store:")
    click.echo("    " + f"{'target':10}{'host':9}" + "".join(f"{title:>9}" for title in _COLUMNS.values()) + "  kernel")
    for row in built:
        what = " ".join(f"{key}={value}" for key, value in row["specialization"].items())
        for kernel in row["kernels"]:
            click.echo(f"    {row['target']:10}{row['host']:9}{_cells(kernel)}  {kernel['symbol']} ({what})")


def _cells(kernel: Mapping[str, Any]) -> str:
    return "".join(f"{kernel.get(name, '-')!s:>9}" for name in _COLUMNS)
