"""The `tkc cache` commands that copy artifacts."""

from __future__ import annotations

import click

COMMANDS: dict[str, click.Command] = {}
