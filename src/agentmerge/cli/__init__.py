"""The command line: parse, call, print. A command's module is imported when the command runs."""

from __future__ import annotations

import sys
from importlib import import_module
from typing import TYPE_CHECKING, Annotated, Any

import typer
from typer.core import TyperGroup
from typer.main import get_command

from agentmerge._version import __version__

if TYPE_CHECKING:
    from collections.abc import Callable

COMMANDS = {
    "demo": "Merge three tiny real agents that are inside the package, and see what happens.",
    "merge": "Merge agents into one checkpoint.",
    "probe": "See what the agents changed, without writing a model.",
    "check": "Say whether the sources fit together, without reading their weights.",
    "inspect": "Read back what a merge did.",
    "methods": "List the merging methods, or explain one.",
    "schema": "Print a JSON Schema, for editors and for checks.",
    "synth": "Write a synthetic base and agents in the shape of a real model.",
    "importance": "Measure which weights an agent's own answers depend on: the diagonal Fisher.",
    "convert": "Turn a mergekit configuration into a recipe, and say what has no equal here.",
}
"""Every command and the first line of its docstring; it is the function of its name in the module of its name."""


def function_of(command: str) -> Callable[..., None]:
    """The function of a command; its module is imported now."""
    function: Callable[..., None] = getattr(import_module(f"agentmerge.cli.{command}"), command)
    return function


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


def main() -> None:
    """The entry point: 0 done, 2 the user's mistake in one calm message, 1 our bug with its traceback."""
    from agentmerge.errors import MergeError

    try:
        app()
    except MergeError as error:
        typer.echo(f"{type(error).__name__}: {error}", err=True)
        for note in getattr(error, "__notes__", ()):
            typer.echo(f"warning: {note}", err=True)
        sys.exit(2)
