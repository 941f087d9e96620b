"""``tkc cache``: thin commands over this package's functions. Those that copy are in `cache_tools.cli_copy`."""

from __future__ import annotations

import time
from collections.abc import Sequence
from contextlib import nullcontext
from dataclasses import asdict, replace
from pathlib import Path

import click

from cache_tools.cli_copy import COMMANDS
from cache_tools.options import age_option, dry_run_option, open_store, selection_options, size_option, store_option
from cache_tools.selection import Selection
from cache_tools.transfer import Source
from tkc.cli._shared import json_option, print_json, size_text, user_store_path


@click.group(commands=COMMANDS)
def cache() -> None:
    """Look after a store.

    \b
    Examples:
      tkc cache usage
      tkc cache prune --max-size 2GB --keep-used 30d && tkc cache gc
      tkc cache fsck --repair
    """


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
@store_option
@json_option
def usage_(root: Path | None, as_json: bool) -> int:
    """Print how much a store holds, by target, family, toolchain and age. Exits with 1 if entries are damaged.

    \b
    Examples:
      tkc cache usage
      tkc cache usage --store /mnt/shared/tkc --json
    """
    from cache_tools.usage import usage

    store = open_store(root)
    found = usage(store, now_s=time.time())
    if as_json:
        print_json({"store": str(store.root), **asdict(found)})
        return 1 if found.damaged else 0
    click.echo(
        f"{store.root}: {found.artifacts} artifacts, {found.blobs} blobs, {size_text(found.blob_bytes)} "
        f"({size_text(found.disk_bytes)} on disk)"
    )
    groups = (
        ("target", found.by_target),
        ("family", found.by_family),
        ("with", found.by_toolchain),
        ("used", found.by_age),
    )
    for title, group in groups:
        for name, (count, size) in group.items():
            click.echo(f"  {title:6} {name:20} {count:6} artifacts {size_text(size):>10}")
    click.echo(
        f"  {found.refs} refs, {found.pins} pins, {found.stages} kept stage outputs, {found.damaged} damaged entries; "
        f"{size_text(found.unreachable_bytes)} that no ref reaches"
    )
    return 1 if found.damaged else 0


@cache.command("prune")
@selection_options
@age_option("--unused", help="Drop what has not been used for this long, such as 90d.")
@size_option("--max-size", help="Drop the least recently used until what is left is no larger, such as 2GB.")
@age_option("--keep-used", help="Keep what was used within this time, whatever the size.")
@click.option("--stages", is_flag=True, help="Drop kept outputs of single stages, which only save time when building.")
@store_option
@dry_run_option
@json_option
def prune_(
    selection: Selection,
    unused: float | None,
    max_size: int | None,
    keep_used: float | None,
    stages: bool,
    root: Path | None,
    dry_run: bool,
    as_json: bool,
) -> int:
    """Drop artifacts by policy, the least recently used first. `tkc cache gc` then frees their bytes.

    \b
    Examples:
      tkc cache prune --max-size 2GB --keep-used 30d --dry-run
      tkc cache prune --toolchain tilelang=0.1.14
      tkc cache prune moe --target sm90 --unused 90d
      tkc cache prune --stages
    """
    from cache_tools.prune import Policy, prune

    if not (selection or unused is not None or max_size is not None or stages):
        raise click.UsageError("say what to drop: a SPEC, --target, --toolchain, --unused, --max-size or --stages")
    policy = Policy(selection, unused, max_size, keep_used or 0.0, stages)
    plan = prune(open_store(root, writable=not dry_run), policy, dry_run=dry_run)
    if as_json:
        print_json(
            {
                "dropped": [
                    {"artifact": one.title, "key": str(one.ref.key), "used_s": one.used_s, "reason": one.reason}
                    for one in plan.dropped
                ],
                "stages": [str(key) for key in plan.stages],
                "kept": plan.kept,
                "kept_bytes": plan.kept_bytes,
                "freed_bytes": plan.freed_bytes,
                "dry_run": dry_run,
            }
        )
        return 0
    for one in plan.dropped:
        click.echo(f"{_done('drop', dry_run)} {one.title}: {one.reason}")
    click.echo(
        f"{len(plan.dropped)} artifacts and {len(plan.stages)} stage outputs {_done('drop', dry_run)}, "
        f"{plan.kept} kept ({size_text(plan.kept_bytes)}), {plan.pinned} of them pinned; "
        f"`tkc cache gc` frees {size_text(plan.freed_bytes)} after its grace period",
        err=True,
    )
    return 0


@cache.command("gc")
@age_option("--grace", help="Spare what was used within this time. Less than the default is only safe beside no build.")
@store_option
@dry_run_option
@json_option
def gc_(grace: float | None, root: Path | None, dry_run: bool, as_json: bool) -> int:
    """Delete what neither a ref nor a pin reaches and nobody has used for a while (2h). Safe beside builds and loads.

    \b
    Examples:
      tkc cache gc
      tkc cache gc --grace 1d --store /mnt/shared/tkc --dry-run
    """
    from cache_tools.gc import DEFAULT_GRACE_S, gc

    grace_s = DEFAULT_GRACE_S if grace is None else grace
    found = gc(open_store(root, writable=not dry_run), grace_s=grace_s, dry_run=dry_run)
    if as_json:
        print_json({**asdict(found), "dry_run": dry_run})
    else:
        click.echo(
            f"{found.manifests} manifests and {found.blobs} blobs {_done('delete', dry_run)}, "
            f"{size_text(found.freed_bytes)}; {found.waiting_blobs} blobs ({size_text(found.waiting_bytes)}) wait for "
            f"the end of their grace period; {found.leftovers} leftovers of killed builds removed; "
            f"{found.stamps} stamps of tools that made nothing here {_done('delete', dry_run)}"
        )
    return 0


@cache.command("fsck")
@click.option("--repair", is_flag=True, help="Restore what other layers have; drop what cannot be restored.")
@click.option(
    "--from",
    "others",
    multiple=True,
    metavar="ADDRESS",
    help="Another store to restore from, before TKC_STORES and TKC_REMOTE: a folder or a remote. May be repeated.",
)
@store_option
@dry_run_option
@json_option
def fsck_(repair: bool, others: Sequence[str], root: Path | None, dry_run: bool, as_json: bool) -> int:
    """Check a whole store: hash every blob, read every record, follow every pointer.

    Exits with the sum of 1 (damaged), 4 (something points at what is not there), 8 (unreadable, or writable by
    others) and 16 (a file that is no entry); 0 if nothing was found or all of it was restored.

    \b
    Examples:
      tkc cache fsck
      tkc cache fsck --repair --from /mnt/shared/tkc
    """
    from cache_tools.fsck import by_kind, fsck
    from tkc.cli._progress import Bar

    repair = repair and not dry_run
    store = open_store(root, writable=repair)
    sources = _sources(others) if repair else None
    with Bar("hashing", 0) if _on_terminal(as_json) else nullcontext() as bar:
        report = fsck(store, repair_from=sources, on_progress=bar.at if bar else None)
    if as_json:
        problems = [{**asdict(one), "kind": one.kind.name} for one in report.problems]
        print_json({"store": str(store.root), **asdict(replace(report, problems=())), "problems": problems})
        return report.exit_code
    for one in report.problems:
        click.echo(f"{(one.kind.name or '').lower():10} {one.entry}: {one.reason}{_outcome(one.outcome)}")
    counts = ", ".join(f"{count} {(kind.name or '').lower()}" for kind, count in by_kind(report.problems))
    click.echo(
        f"{store.root}: {report.blobs} blobs, {report.manifests} manifests, {report.refs} refs; {counts or 'all good'}",
        err=True,
    )
    return report.exit_code


@cache.command("rm")
@selection_options
@store_option
@dry_run_option
@json_option
def rm_(selection: Selection, root: Path | None, dry_run: bool, as_json: bool) -> int:
    """Remove chosen artifacts at once, with the stages they were made from, so that the next build compiles anew.

    \b
    Examples:
      tkc cache rm moe.topk_gate --target sm90
      tkc cache rm --toolchain tilelang=0.1.14
      tkc cache rm --action 3f2a91c0
    """
    from cache_tools.rm import rm

    if not selection:
        raise click.UsageError("say what to remove: a SPEC, --target, --toolchain or --action")
    removal = rm(open_store(root, writable=not dry_run), selection, dry_run=dry_run)
    if as_json:
        print_json({"artifacts": removal.titles, "manifests": [str(k) for k in removal.manifests], "dry_run": dry_run})
        return 0
    for title in removal.titles:
        click.echo(f"{_done('remove', dry_run)} {title}")
    click.echo(f"{len(removal.refs)} refs and {len(removal.manifests)} manifests {_done('remove', dry_run)}", err=True)
    return 0


@cache.command("pin")
@selection_options
@click.option("--note", default="", metavar="TEXT", help="Why, for whoever reads the list.")
@click.option("--remove", is_flag=True, help="Take pins back.")
@store_option
@dry_run_option
@json_option
def pin_(selection: Selection, note: str, remove: bool, root: Path | None, dry_run: bool, as_json: bool) -> int:
    """Keep chosen artifacts, whatever prune is told; without a choice, list the pins.

    \b
    Examples:
      tkc cache pin --target sm90 --note "release 1.2"
      tkc cache pin
      tkc cache pin --target sm90 --remove
    """
    from cache_tools.rm import describe, pin, unpin

    store = open_store(root, writable=bool(selection or remove) and not dry_run)
    if remove:
        keys = unpin(store, selection, dry_run=dry_run)
        return _say_pins("unpin", [{"key": str(key)} for key in keys], dry_run, as_json)
    if selection:
        chosen = pin(store, selection, note=note, dry_run=dry_run)
        return _say_pins("pin", [{"key": str(one.key), "artifact": describe(one)} for one in chosen], dry_run, as_json)
    pins = [{"key": str(one.key), "note": one.note} for one in store.pins()]
    if as_json:
        print_json({"pins": pins})
    else:
        for one in pins:
            click.echo(f"{one['key']}  {one['note']}")
    return 0


@cache.command("misses")
@click.option("--clear", is_flag=True, help="Empty the log afterwards.")
@store_option
@dry_run_option
@json_option
def misses_(clear: bool, root: Path | None, dry_run: bool, as_json: bool) -> int:
    """Print what jobs asked for and did not find, the most often missed first, as commands that build it.

    `tkc build --from-misses FILE` builds all of it; the file is misses-v1/misses.jsonl in the store.

    \b
    Examples:
      tkc cache misses
      tkc build --from-misses "$(tkc cache dir)/misses-v1/misses.jsonl"
    """
    from cache_tools.misses import clear as empty
    from cache_tools.misses import misses

    log = open_store(root).miss_log
    found = misses(log)
    if as_json:
        wanted = [{**asdict(one), "command": one.command} for one in found.wanted]
        print_json({"log": str(log.path), "damaged_lines": found.damaged_lines, "misses": wanted})
    else:
        for one in found.wanted:
            click.echo(f"{one.count:6} times  {one.command}")
        click.echo(f"{len(found.wanted)} artifacts missed; {found.damaged_lines} lines could not be read", err=True)
    if clear and not dry_run:
        empty(log)
    return 0


def _sources(others: Sequence[str]) -> dict[str, Source]:
    from cache_tools.remote import open_source
    from tkc.config import Settings

    settings = Settings.from_env()
    addresses = (*others, *map(str, settings.stores), *([settings.remote] if settings.remote else []))
    return {address: open_source(address) for address in addresses}


def _say_pins(verb: str, rows: list[dict[str, str]], dry_run: bool, as_json: bool) -> int:
    if as_json:
        print_json({f"{verb}ned": rows, "dry_run": dry_run})
        return 0
    for row in rows:
        click.echo(f"{_done(verb, dry_run)} {row.get('artifact', row['key'])}")
    return 0


def _done(verb: str, dry_run: bool) -> str:
    past = {"drop": "dropped", "delete": "deleted", "remove": "removed", "pin": "pinned", "unpin": "unpinned"}[verb]
    return f"would be {past}" if dry_run else past


def _outcome(outcome: str) -> str:
    return f" → {outcome}" if outcome else ""


def _on_terminal(as_json: bool) -> bool:
    import sys

    return not as_json and sys.stderr.isatty()
