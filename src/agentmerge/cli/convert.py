"""The command `agentmerge convert`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from agentmerge.cli import options as o


def convert(
    config: Annotated[Path, typer.Argument(help="A mergekit configuration (YAML).", show_default=False)],
    out: Annotated[Path | None, typer.Option(help="New file for the recipe.", show_default="print it")] = None,
    layers: Annotated[
        int | None,
        typer.Option(min=1, help="How many layers the models have; gradients need it.", show_default="from the file"),
    ] = None,
    quiet: o.Quiet = False,
) -> None:
    """Turn a mergekit configuration into a recipe, and say what has no equal here."""
    from agentmerge.cli.console import tell_warnings
    from agentmerge.errors import OutputError
    from agentmerge.mergekit import convert_mergekit

    conversion = convert_mergekit(config, layers)
    tell_warnings(conversion.warnings, quiet)
    if out is None:
        typer.echo(conversion.yaml(), nl=False)
        return
    try:
        with out.open("x", encoding="utf-8") as file:
            file.write(conversion.yaml())
    except FileExistsError:
        raise OutputError(f"{out}: exists already. Choose another --out.") from None
    except OSError as error:
        raise OutputError(f"{out}: can't be written: {error}") from error
