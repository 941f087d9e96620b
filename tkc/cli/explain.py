"""``tkc explain``: what goes into a kernel's key, and why it hits or misses."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import click

from tkc.cli._shared import host_option, json_option, parse_params, print_json, target_option
from tkc.model import FieldDiff, Host, Request, Target, diff_fields

_NEAREST = 3


@click.command()
@click.argument("name", metavar="SPEC")
@click.argument("words", nargs=-1, metavar="KEY=VALUE...")
@target_option
@host_option
@json_option
def explain(name: str, words: tuple[str, ...], target: Target | None, host: Host | None, as_json: bool) -> int:
    """Show the request of one call, which layer answers it, and, on a miss, the nearest entries field by field.

    Exits with 0 on a hit, 1 on a miss. Needs no toolchain and no device.

    \b
    Examples:
      tkc explain moe.topk_gate num_experts=256 num_topk=8 --target sm90
      tkc explain quant.cast x_dtype=float32 y_dtype=bfloat16 --target cpu --json
    """
    from tkc.cache import Hit
    from tkc.hardware import default_target
    from tkc.registry import load_catalog
    from tkc.runtime import layers

    entry = load_catalog().find(name)
    target = target or default_target()
    specialization = entry.spec.bind(**parse_params(words))
    request = Request(
        specialization, entry.source_digest(target.backend), target.name, (host or Host.this_machine()).arch
    )
    found = layers().resolve(request.key)
    hit = isinstance(found, Hit)
    nearest = [] if hit else _nearest(request)
    if as_json:
        print_json(_as_json(request, found, nearest))
    else:
        _print(request, found, nearest)
    return 0 if hit else 1


def _nearest(request: Request) -> list[tuple[str, Mapping[str, Any], tuple[FieldDiff, ...]]]:
    """The entries of any layer that differ in the fewest fields."""
    from tkc.runtime import layers

    candidates = [
        (str(store.root), ref.fields, diff_fields(request.fields(), ref.fields))
        for store in layers().stores
        for ref in store.refs()
        if ref.fields.get("spec") == request.specialization.spec
    ]
    return sorted(candidates, key=lambda candidate: len(candidate[2]))[:_NEAREST]


def _as_json(request: Request, found: Any, nearest: list[Any]) -> dict[str, Any]:
    from tkc.cache import Hit
    from tkc.wheel.discover import layer_title

    hit = isinstance(found, Hit)
    return {
        "request": {"key": str(request.key), **request.fields()},
        "hit": hit,
        "layer": str(found.store.root) if hit else None,
        "layer_title": layer_title(found.store.root) if hit else None,
        "passed_over": list(found.skipped) if hit else [],
        "files": {file.name: str(found.path(file.name)) for file in found.manifest.files} if hit else {},
        "action": {"key": str(found.manifest.key), **found.manifest.action} if hit else None,
        "provenance": dict(found.manifest.provenance) if hit else None,
        "reason": None if hit else found.reason,
        "nearest": [
            {
                "layer": layer,
                "fields": dict(fields),
                "diff": [{"field": d.field, "asked": d.ours, "there": d.theirs} for d in diff],
            }
            for layer, fields, diff in nearest
        ],
    }


def _print(request: Request, found: Any, nearest: list[Any]) -> None:
    from tkc.cache import Hit
    from tkc.wheel.discover import layer_title

    click.echo(f"request {request.key.short}  {request}")
    for field, value in request.fields().items():
        click.echo(f"  {field:15} {_text(value)}")
    if isinstance(found, Hit):
        for reason in found.skipped:
            click.echo(f"passed over {reason}")
        click.echo(f"hit in {layer_title(found.store.root)}: artifact {found.manifest.key.short}")
        for field, value in found.manifest.action.items():
            click.echo(f"  {field:15} {_text(value)}")
        for field, value in found.manifest.provenance.items():
            click.echo(f"  {field:15} {value}")
        return
    click.echo("miss:")
    for line in found.reason.splitlines():
        click.echo(f"  {line}")
    for layer, _fields, diff in nearest:
        click.echo(f"near, in {layer}:")
        for one in diff:
            click.echo(f"  {one.field}: asked {_text(one.ours)}, there {_text(one.theirs)}")
    click.echo(f"to build it: tkc build {request}")


def _text(value: Any) -> str:
    if isinstance(value, Mapping):
        return " ".join(f"{key}={_text(item)}" for key, item in value.items())
    return str(value)
