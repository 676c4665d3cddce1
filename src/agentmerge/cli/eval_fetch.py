"""The command `agentmerge eval fetch`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from agentmerge.cli.console import say
from agentmerge.cli.options import Json
from agentmerge.eval.fetch import fetch
from agentmerge.eval.suite import Given


def eval_fetch(
    suite: Annotated[str, typer.Argument(help="Its name; `agentmerge eval doctor` lists them.")],
    data_dir: Annotated[Path, typer.Option(help="Folder that the files go to.", show_default=False)],
    overwrite: Annotated[bool, typer.Option("--overwrite", help="Fetch again what is there.")] = False,
    json: Json = False,
) -> None:
    """Fetch the data of a benchmark from the hub into a folder."""
    files = fetch(suite, Given(data_dir), overwrite=overwrite)
    text = "\n".join(f"{data_dir / one.name}: {one.items:,} items, sha256 {one.sha256}" for one in files)
    say([vars(one) for one in files] if json else text, as_json=json)
