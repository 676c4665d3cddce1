"""The command `agentmerge schema`, and what a recipe may hold as a JSON Schema and as a table."""

from __future__ import annotations

from enum import StrEnum
from typing import Annotated, Any

import typer

from agentmerge.cli.console import say
from agentmerge.cli.fields import recipe_fields
from agentmerge.methods.registry import known_methods
from agentmerge.recipe import Recipe
from agentmerge.record import MergeRecord, ProbeRecord


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
    schemas = {
        Kind.RECIPE: recipe_schema,
        Kind.RECORD: MergeRecord.model_json_schema,
        Kind.SURVEY: ProbeRecord.model_json_schema,
        Kind.PROBE: ProbeRecord.model_json_schema,
    }
    say(schemas[kind](), as_json=True)


def recipe_schema() -> dict[str, Any]:
    """JSON Schema of a recipe, with every known method and the short forms that YAML may use."""
    schema = Recipe.model_json_schema()
    methods = {method.__name__: method.model_json_schema() for method in known_methods().values()}
    aliases = [alias for method in known_methods().values() for alias in method.aliases]
    names = sorted({*known_methods(), *aliases})
    schema["$defs"] |= methods
    forms = [{"enum": names}, *({"$ref": f"#/$defs/{name}"} for name in methods)]
    schema["properties"]["method"] = {"description": Recipe.model_fields["method"].description, "anyOf": forms}
    agents = schema["properties"]["agents"]["patternProperties"]
    for pattern, source in agents.items():
        agents[pattern] = {"anyOf": [{"type": "string"}, source]}
    return schema


def recipe_table() -> str:
    """The fields of a recipe as a table in Markdown: section, field, values, default, meaning."""
    lines = ["| section | field | values | default | meaning |", "|---|---|---|---|---|"]
    for field in recipe_fields():
        section = f"`{field.section}`" if field.section else ""
        values = ", ".join(value.strip("<>") if value.startswith("<") else f"`{value}`" for value in field.values)
        default = f"`{field.default}`" if field.default else "required"
        meaning = field.meaning.replace("|", "\\|")
        lines.append(f"| {section} | `{field.name}` | {values} | {default} | {meaning} |")
    return "\n".join(lines) + "\n"
