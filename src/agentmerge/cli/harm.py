"""The command `agentmerge harm`."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from agentmerge.cli.measured import tell
from agentmerge.cli.options import Json, Quiet, takes_recipe, takes_settings
from agentmerge.cli.reports import check_places
from agentmerge.cli.table import Column, Table
from agentmerge.errors import RecipeError, Where
from agentmerge.files.staging import replace_file
from agentmerge.harm.options import HarmOptions
from agentmerge.recipe import Recipe

if TYPE_CHECKING:
    from agentmerge.cli.console import Bar
    from agentmerge.harm.record import HarmRecord

FORM = '{"prompt": ..., "skill": ..., "response": ...}'


@takes_recipe()
@takes_settings(HarmOptions, HarmOptions.of)
def harm(
    wanted: HarmOptions,
    recipe: Recipe,
    prompts: Annotated[
        Path,
        typer.Option(help=f"What the base can do: JSON lines of {FORM}, the last two optional.", show_default=False),
    ],
    own: Annotated[
        list[str] | None,
        typer.Option(
            metavar="AGENT=SKILL", help="An agent was trained on this skill; repeat.", show_default="that of its name"
        ),
    ] = None,
    out: Annotated[Path | None, typer.Option(help="Write everything to FILE as JSON.", show_default=False)] = None,
    write_recipe: Annotated[
        Path | None, typer.Option(help="Write the recipe with the advice in it to FILE.", show_default=False)
    ] = None,
    json: Json = False,
    quiet: Quiet = False,
) -> None:
    """Say which agents damage what the base could do, where, and what to do about it."""
    from agentmerge.harm.remedies import applied, as_yaml
    from agentmerge.harm.run import measure_harm

    skills = _skills(own or ())
    check_places(out, write_recipe, recipe=recipe, data=prompts)

    def measure(bar: Bar) -> HarmRecord:
        record = measure_harm(recipe, prompts, wanted, own=skills, watch=bar)
        if out is not None:
            record.save(out)
        return record

    complete = f"The measurement is complete in {out}" if out is not None else ""
    record = tell(measure, tables, complete, json=json, quiet=quiet, resumes=False)
    if write_recipe is not None:
        replace_file(write_recipe, as_yaml(applied(recipe, record.change)).encode())


def tables(record: HarmRecord) -> list[Any]:
    """What was found, for people."""
    columns = [Column("agent", "name"), Column("skill", "name"), Column("own", "text")]
    columns += [Column(name, "number") for name in ("drop", "+-", "tokens kept", "answers kept")]
    found = Table("Drop of the log-likelihood of the base's own answers, nats an answer", columns)
    for row in record.rows:
        shares = f"{row.kept_tokens:.1%}", f"{row.kept_answers:.1%}"
        mark = "own" if row.own else "HARM" if row.harmed else ""
        found.add(row.agent, row.skill or "-", mark, f"{row.drop:.3f}", f"{row.error:.3f}", *shares)
    return [found, "\n".join(f"- {one.text}" for one in record.verdict)]


def _skills(texts: list[str] | tuple[str, ...]) -> dict[str, list[str]]:
    """Skills by agent."""
    found: dict[str, list[str]] = {}
    for text in texts:
        agent, sign, skill = text.partition("=")
        if not (agent and sign):
            raise RecipeError(f"--own {text}: expected AGENT=SKILL.", where=Where(path="--own"))
        found.setdefault(agent, []).append(skill)
    return found
