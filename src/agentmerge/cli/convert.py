"""The command `agentmerge convert`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from agentmerge.cli.console import say, tell_warnings
from agentmerge.cli.options import Json, Quiet
from agentmerge.cli.process import printing
from agentmerge.errors import RecipeError
from agentmerge.files.staging import replace_file
from agentmerge.mergekit import convert_mergekit


def convert(
    config: Annotated[Path, typer.Argument(help="A mergekit configuration (YAML).", show_default=False)],
    out: Annotated[Path | None, typer.Option(help="New file for the recipe.", show_default="print it")] = None,
    layers: Annotated[
        int | None,
        typer.Option(
            min=1,
            help="How many layers the models have; gradients need it.",
            show_default="from the file or a model that is here",
        ),
    ] = None,
    json: Json = False,
    quiet: Quiet = False,
) -> None:
    """Turn a mergekit configuration into a recipe, and say what has no equal here."""
    try:
        conversion = convert_mergekit(config, layers)
    except RecipeError as error:
        if quiet:
            error.__notes__ = []
        raise
    tell_warnings(conversion.warnings, quiet)
    if conversion.downloads and not quiet:
        typer.echo(
            "\n".join(
                (
                    "A merge fetches its sources from the hub. To have them in folders of their own, where you merge:",
                    *conversion.downloads,
                )
            ),
            err=True,
        )
    if out is not None:
        replace_file(out, conversion.yaml().encode(), new=True)
    if json:
        told = {"warnings": list(map(str, conversion.warnings)), "downloads": list(conversion.downloads)}
        with printing(f"The recipe is complete in {out}" if out is not None else ""):
            say({"recipe": conversion.data, **told}, as_json=True)
    elif out is None:
        typer.echo(conversion.yaml(), nl=False)
