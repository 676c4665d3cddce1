"""The command line: parse, call, print. Every command imports what it needs when it runs."""

from __future__ import annotations

import sys
from typing import Annotated

import typer

from agentmerge._version import __version__
from agentmerge.cli.check import check
from agentmerge.cli.convert import convert
from agentmerge.cli.demo import demo
from agentmerge.cli.importance import importance
from agentmerge.cli.inspect import inspect
from agentmerge.cli.merge import merge
from agentmerge.cli.methods import methods
from agentmerge.cli.probe import probe
from agentmerge.cli.schema import schema
from agentmerge.cli.synth import synth
from agentmerge.errors import MergeError

app = typer.Typer(
    name="agentmerge",
    help="Merge RL-trained agents of one base into one checkpoint.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
)
for command in (demo, merge, probe, check, inspect, methods, schema, synth, importance, convert):
    app.command()(command)


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
    try:
        app()
    except MergeError as error:
        typer.echo(f"{type(error).__name__}: {error}", err=True)
        sys.exit(2)
