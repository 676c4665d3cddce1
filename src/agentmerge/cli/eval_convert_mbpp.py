"""The command `agentmerge eval convert-mbpp`."""

from __future__ import annotations

import json as json_
from pathlib import Path
from typing import Annotated

import typer

from agentmerge.cli.console import say
from agentmerge.cli.options import Json
from agentmerge.errors import EvalError, Where
from agentmerge.eval.data import read_rows
from agentmerge.eval.stdio.mbpp import FIELDS, convert
from agentmerge.files.staging import replace_file


def eval_convert_mbpp(
    source: Annotated[Path, typer.Argument(help="MBPP's tasks, as JSON lines or a JSON list.")],
    out: Annotated[Path, typer.Argument(help="The file to write; DATA_DIR/MBPP.json is what the suite code reads.")],
    examples: Annotated[int, typer.Option(min=0, help="Tests that a task's text shows.")] = 1,
    overwrite: Annotated[bool, typer.Option("--overwrite", help="Replace a file that is there.")] = False,
    json: Json = False,
) -> None:
    """Turn MBPP's functions into programs that read and print, for the suite code.

    What is written is in CURE's format, with the gold function as a program beside it.
    """
    if out.exists() and not overwrite:
        raise EvalError(f"{out}: is there already", todo="Add --overwrite to replace it.", where=Where(path=str(out)))
    found = convert(read_rows(source, FIELDS), examples)
    replace_file(out, (json_.dumps(found.tasks, indent=1, ensure_ascii=False) + "\n").encode())
    lines = [f"{out}: {len(found.tasks):,} tasks"]
    lines += [f"left out: task {task}: {why}" for task, why in found.skipped.items()]
    say({"tasks": len(found.tasks), "skipped": found.skipped} if json else "\n".join(lines), as_json=json)
