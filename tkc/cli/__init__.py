"""The `tkc` command: parse, one call, print. One file a command; heavy imports inside the commands.

Exit codes: 0 done; 1 something failed or is missing; 2 the command line could not be understood;
130 interrupted.
"""

from __future__ import annotations

import sys

import click

from tkc import __version__
from tkc.errors import TkcError


class _LazyGroup(click.Group):
    """Imports a command's module when the command is used or its help is shown."""

    def __init__(self, *args: object, modules: dict[str, str], **kwargs: object) -> None:
        super().__init__(*args, **kwargs)  # type: ignore[arg-type]
        self._modules = modules

    def list_commands(self, ctx: click.Context) -> list[str]:
        return [*self._modules]  # `list` is a module of this package, once it is imported

    def get_command(self, ctx: click.Context, name: str) -> click.Command | None:
        if name not in self._modules:
            return None
        from importlib import import_module

        module, _, attribute = self._modules[name].partition(":")
        command: click.Command = getattr(import_module(module), attribute)
        return command

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        from tkc.errors import unknown_name

        if args and args[0] not in self._modules and not args[0].startswith("-"):
            ctx.fail(unknown_name("command", args[0], self._modules))
        return super().resolve_command(ctx, args)


@click.group(
    cls=_LazyGroup,
    modules={
        "build": "tkc.cli.build:build",
        "list": "tkc.cli.list:list_specs",
        "show": "tkc.cli.show:show",
        "explain": "tkc.cli.explain:explain",
        "check": "tkc.cli.check:check",
        "wheel": "tkc.cli.wheel:wheel",
        "coverage": "tkc.cli.coverage:coverage",
        "verify": "tkc.cli.verify:verify",
        "diff": "tkc.cli.diff:diff",
        "misses": "tkc.cli.misses:misses",
        "doctor": "tkc.cli.doctor:doctor",
        "cache": "cache_tools.cli:cache",
    },
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 110},
)
@click.version_option(__version__, prog_name="tkc")
def cli() -> None:
    """Compile TileLang kernels ahead of time, keep them, and find them again in microseconds.

    \b
    Examples:
      tkc build --target sm90 --grid deepseek-v3     compile a model's kernels, with no GPU
      tkc list                                       the catalogue
      tkc explain moe.topk_gate num_experts=256 num_topk=8 --target sm90
      tkc wheel --target sm90 --grid deepseek-v3     a wheel that a job installs
      tkc doctor                                     what this machine can do, and what it lacks
    """


def main() -> None:
    """Run the command line; the one place where an error becomes a message and an exit code."""
    try:
        sys.exit(cli.main(standalone_mode=False) or 0)
    except click.ClickException as error:
        error.show()
        sys.exit(error.exit_code)
    except TkcError as error:
        click.echo(f"error: {error}", err=True)
        sys.exit(1)
    except (KeyboardInterrupt, click.Abort):
        click.echo("interrupted", err=True)
        sys.exit(130)
    except BrokenPipeError:
        sys.stderr.close()  # the reader of our output has gone; nothing more can be said
        sys.exit(1)
