"""The `tkc cache` commands that copy artifacts."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import Any

import click

from cache_tools.options import dry_run_option, open_store, selection_options, size_option, store_option
from cache_tools.selection import Selection
from tkc.cache import Verifier
from tkc.cli._shared import json_option, print_json, size_text

_jobs_option = click.option(
    "-j", "--jobs", type=click.IntRange(1), default=8, show_default=True, help="Connections at a time."
)


@click.command("export")
@click.argument("file", type=click.Path(path_type=Path, dir_okay=False))
@selection_options
@click.option("--stages", is_flag=True, help="Also the stage outputs that the artifacts were made from.")
@store_option
@dry_run_option
@json_option
def export_(file: Path, selection: Selection, stages: bool, root: Path | None, dry_run: bool, as_json: bool) -> int:
    """Write artifacts to one FILE (a tar; gzipped if it ends in gz). Exits with 1 if damaged ones were left out.

    \b
    Examples:
      tkc cache export sm90.tar.gz --target sm90
      tkc cache export moe.tar moe --stages
    """
    from cache_tools.bundle import export

    done = export(open_store(root), file, selection, stages=stages, dry_run=dry_run)
    return _say("would be exported" if dry_run else "exported", done, as_json)


@click.command("import")
@click.argument("file", type=click.Path(path_type=Path))
@size_option("--max-size", default="16GB", show_default=True, help="Refuse a bundle that holds more.")
@click.option("--require-signature", "key", metavar="KEY", help="Take only what this public key signed.")
@store_option
@dry_run_option
@json_option
def import_(file: Path, max_size: int, key: str | None, root: Path | None, dry_run: bool, as_json: bool) -> int:
    """Take what `tkc cache export` wrote into a store, verified. A bundle is code: import only what you trust.

    \b
    Examples:
      tkc cache import sm90.tar.gz
      tkc cache import sm90.tar.gz --dry-run         verify it, take nothing
    """
    from cache_tools.bundle import import_ as take

    signers = _signers(key)
    done = take(file, open_store(root, writable=True), max_bytes=max_size, signers=signers, dry_run=dry_run)
    return _say("would be imported" if dry_run else "imported", done, as_json)


@click.command("push")
@click.argument("address")
@selection_options
@click.option("--stages", is_flag=True, help="Also the stage outputs that the artifacts were made from.")
@click.option("--force", is_flag=True, help="Write everything again, also what is there.")
@_jobs_option
@store_option
@dry_run_option
@json_option
def push_(
    address: str,
    selection: Selection,
    stages: bool,
    force: bool,
    jobs: int,
    root: Path | None,
    dry_run: bool,
    as_json: bool,
) -> int:
    """Copy artifacts to a remote store at ADDRESS: a folder, s3://…, https://…, or whatever fsspec knows.

    What is there is not copied again, so a push that was cut goes on where it ended.

    \b
    Examples:
      tkc cache push s3://bucket/tkc --target sm90
      tkc cache push /mnt/shared/tkc moe
    """
    from cache_tools.sync import push

    with _bar("pushing", as_json) as progress:
        done = push(
            open_store(root),
            address,
            selection,
            stages=stages,
            jobs=jobs,
            force=force,
            dry_run=dry_run,
            on_progress=progress,
        )
    return _say("would be pushed" if dry_run else "pushed", done, as_json)


@click.command("pull")
@click.argument("address")
@selection_options
@_jobs_option
@click.option("--require-signature", "key", metavar="KEY", help="Take only what this public key signed.")
@store_option
@dry_run_option
@json_option
def pull_(
    address: str,
    selection: Selection,
    jobs: int,
    key: str | None,
    root: Path | None,
    dry_run: bool,
    as_json: bool,
) -> int:
    """Copy artifacts from a remote store at ADDRESS, verified on arrival. A remote is code: pull what you trust.

    Exits with 1 if something was left out because it is damaged, missing or unsigned.

    \b
    Examples:
      tkc cache pull s3://bucket/tkc --target sm90
      tkc cache pull https://host/tkc moe --dry-run
    """
    from cache_tools.remote import open_source
    from cache_tools.sync import pull

    with _bar("pulling", as_json) as progress:
        done = pull(
            open_source(address),
            open_store(root, writable=True),
            selection,
            signers=_signers(key),
            jobs=jobs,
            dry_run=dry_run,
            on_progress=progress,
        )
    return _say("would be copied" if dry_run else "there now", done, as_json)


@click.command("migrate")
@click.argument("folder", type=click.Path(path_type=Path, file_okay=False, exists=True))
@selection_options
@store_option
@dry_run_option
@json_option
def migrate_(folder: Path, selection: Selection, root: Path | None, dry_run: bool, as_json: bool) -> int:
    """Bring the artifacts of another store FOLDER, also one of an earlier format, into this store. Leaves it as it is.

    \b
    Examples:
      tkc cache migrate /old/cache/tkc
    """
    from cache_tools.migrate import migrate

    with _bar("migrating", as_json) as progress:
        store = open_store(root, writable=True)
        done = migrate(folder, store, selection, dry_run=dry_run, on_progress=progress)
    return _say("would be copied" if dry_run else "there now", done, as_json)


@click.command("keygen")
@click.argument("file", type=click.Path(path_type=Path, dir_okay=False))
@json_option
def keygen_(file: Path, as_json: bool) -> int:
    """Make a key to sign with in FILE, readable by its owner alone, and print the public key.

    \b
    Examples:
      tkc cache keygen ~/.config/tkc/signing.key
    """
    from cache_tools.sign import new_key

    public = new_key(file)
    if as_json:
        print_json({"key": str(file), "public_key": public})
    else:
        click.echo(public)
    return 0


@click.command("sign")
@selection_options
@click.option("--key", type=click.Path(path_type=Path), metavar="FILE", help="The private key to sign with.")
@click.option("--check", metavar="KEY", help="Sign nothing; say what this public key did not sign.")
@store_option
@dry_run_option
@json_option
def sign_(
    selection: Selection, key: Path | None, check: str | None, root: Path | None, dry_run: bool, as_json: bool
) -> int:
    """Sign artifacts, so that machines with TKC_REQUIRE_SIGNATURE take them from a shared store, bundle or remote.

    \b
    Examples:
      tkc cache sign --key ~/.config/tkc/signing.key --target sm90
      tkc cache sign --check 3d40…
    """
    from cache_tools import sign

    if (key is None) == (check is None):
        raise click.UsageError("give --key FILE to sign, or --check KEY to look")
    if key is not None:
        done = sign.sign(open_store(root, writable=not dry_run), key, selection, dry_run=dry_run)
    else:
        done = sign.check(open_store(root), str(check), selection)
    if as_json:
        print_json(asdict(done))
    else:
        for line in done.skipped:
            click.echo(f"not signed: {line}", err=True)
        click.echo(f"{done.refs} artifacts signed by {done.signer}")
    return 1 if done.skipped else 0


@contextmanager
def _bar(title: str, as_json: bool) -> Iterator[Callable[[int, int], object] | None]:
    if as_json or not sys.stderr.isatty():
        yield None
        return
    from tkc.cli._progress import Bar

    with Bar(title, 0) as bar:
        yield bar.at


def _signers(key: str | None) -> Verifier | None:
    """Whom to trust: the key given, else those that the environment requires."""
    from cache_tools.remote import signers_from
    from tkc.cache import Signers
    from tkc.config import Settings

    return Signers([key]) if key else signers_from(Settings.from_env())


def _say(verb: str, done: Any, as_json: bool) -> int:
    if as_json:
        print_json(asdict(done))
    else:
        for line in done.skipped:
            click.echo(f"left out: {line}", err=True)
        click.echo(f"{done.refs} artifacts {verb}: {done.blobs} blobs, {size_text(done.blob_bytes)}")
    return 1 if done.skipped else 0


COMMANDS: dict[str, click.Command] = {
    "export": export_,
    "import": import_,
    "push": push_,
    "pull": pull_,
    "migrate": migrate_,
    "keygen": keygen_,
    "sign": sign_,
}
