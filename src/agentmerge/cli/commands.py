"""The commands as typer sees them. A command's module is imported when the command runs."""

from __future__ import annotations

import re
from importlib import import_module
from typing import TYPE_CHECKING, Annotated, Any

import typer
from typer.core import TyperGroup
from typer.main import get_command

from agentmerge._version import __version__
from agentmerge.cli import COMMANDS
from agentmerge.files.paths import expanded_text

if TYPE_CHECKING:
    from collections.abc import Callable


def function_of(command: str) -> Callable[..., None]:
    """The function of a command; its module is imported now."""
    name = command.replace(" ", "_").replace("-", "_")
    function: Callable[..., None] = getattr(import_module(f"agentmerge.cli.{name}"), name)
    return function


def at_home(word: str) -> str:
    """A word with its "~" expanded where no shell does it: in quotes, and behind `--out=` or `NAME=`."""
    found = re.fullmatch(r"((?:--[\w-]+=)?(?:[\w.+-]+=)?)(~(?:/.*)?)", word, re.DOTALL)
    return found[1] + expanded_text(found[2]) if found else word


class Commands(TyperGroup):
    """The commands of the table, so that the help of all of them needs none of their modules."""

    def __init__(self, **attrs: Any) -> None:
        super().__init__(**attrs)
        self.commands: dict[str, Any] = dict.fromkeys(COMMANDS)

    def list_commands(self, ctx: Any) -> list[str]:
        """Their names in the table's order."""
        return list(COMMANDS)

    def get_command(self, ctx: Any, cmd_name: str) -> Any:
        """One of them as typer makes it; None where there is no such name."""
        if cmd_name in COMMANDS and self.commands[cmd_name] is None:
            alone = typer.Typer(add_completion=False, pretty_exceptions_enable=False, rich_markup_mode=None)
            alone.command(cmd_name)(function_of(cmd_name))
            self.commands[cmd_name] = get_command(alone)
        return self.commands.get(cmd_name)

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        """A command of two words is one; `eval MODEL` is the command of one word."""
        args = [at_home(word) for word in args]
        words = " ".join(args[:2])
        return super().resolve_command(ctx, [words, *args[2:]] if words in COMMANDS else args)

    def format_commands(self, ctx: Any, formatter: Any) -> None:
        """Their lines of the table."""
        with formatter.section("Commands"):
            formatter.write_dl(list(COMMANDS.items()))


app = typer.Typer(
    name="agentmerge",
    cls=Commands,
    help="Merge RL-trained agents of one base into one checkpoint.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
)


def _print_version(wanted: bool) -> None:
    if wanted:
        typer.echo(__version__)
        raise typer.Exit


@app.callback()
def _options(
    version: Annotated[
        bool, typer.Option("--version", callback=_print_version, is_eager=True, help="Print the version.")
    ] = False,
) -> None:
    pass
