"""The command `agentmerge methods`."""

from __future__ import annotations

from typing import Annotated

import typer

from agentmerge.cli.console import say
from agentmerge.cli.options import Json
from agentmerge.cli.tables import method_text, methods_table
from agentmerge.methods.registry import known_methods, resolve_method


def methods(
    name: Annotated[
        str | None, typer.Argument(help="One method, with formula and settings.", show_default=False)
    ] = None,
    json: Json = False,
) -> None:
    """List the merging methods, or explain one."""
    if name is not None:
        method = resolve_method(name)
        say(type(method).model_json_schema() if json else method_text(method), as_json=json)
        return
    found = {known: resolve_method(known) for known in known_methods()}
    dumps = {known: method.model_dump(mode="json") for known, method in found.items()}
    say(dumps if json else methods_table(found), as_json=json)
