"""The command `agentmerge schema`."""

from __future__ import annotations

from enum import StrEnum
from typing import Annotated

import typer


class Kind(StrEnum):
    """What has a schema."""

    RECIPE = "recipe"
    RECORD = "record"
    SURVEY = "survey"
    PROBE = "probe"


def schema(
    kind: Annotated[
        Kind, typer.Argument(help="The recipe, merge_record.json, or what `probe --json` writes (survey, probe).")
    ] = Kind.RECIPE,
) -> None:
    """Print a JSON Schema, for editors and for checks."""
    from agentmerge.cli.console import say
    from agentmerge.recipe import recipe_schema
    from agentmerge.record import MergeRecord, ProbeRecord

    schemas = {
        Kind.RECIPE: recipe_schema,
        Kind.RECORD: MergeRecord.model_json_schema,
        Kind.SURVEY: ProbeRecord.model_json_schema,
        Kind.PROBE: ProbeRecord.model_json_schema,
    }
    say(schemas[kind](), as_json=True)
