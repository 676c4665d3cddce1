"""The command `agentmerge demo`: merge the shipped agents and say what happened, in plain words."""

from __future__ import annotations

import shlex
from pathlib import Path
from time import monotonic
from typing import TYPE_CHECKING, Annotated, Any

import typer

from agentmerge.api import merge, probe
from agentmerge.cli.console import say
from agentmerge.cli.options import Json, Quiet
from agentmerge.cli.process import Stopped, printing
from agentmerge.cli.table import Column, Prose, Table
from agentmerge.cli.tables import overlap_table, rounding_table
from agentmerge.demo.contest import COUNT, MODELS, Row, rows
from agentmerge.demo.shipped import recipe
from agentmerge.errors import SurveyError
from agentmerge.eval import generate
from agentmerge.record import RECORD, MergeRecord

if TYPE_CHECKING:
    from collections.abc import Sequence

    from agentmerge.recipe import Recipe
    from agentmerge.record import SurveySummary

TIME = {
    True: """\
Takes about {minutes} minutes, nearly all of it to score {models} models after the merge, which takes seconds. Ctrl-C
while it scores keeps the merge; --no-scores leaves the scores out.""",
    False: "Takes a few seconds.",
}
"""By whether models are scored."""
MINUTES = 3
"""Of one processor that scoring all models takes; more where other work is done besides."""
INTERRUPTED = 130
"""The exit code after Ctrl-C."""
INTRODUCTION = """\
Inside this package are a tiny language model of 1 million parameters, the base, and agents made from it by
reinforcement learning: `code` writes short list programs, `memory` finds values by their keys, `tool` writes JSON
calls. Each got better at its own job alone. Merging makes one checkpoint with all three skills, without training.

1. What did each agent change?"""
OVERLAP = """\
Read it like this: `density` is the share of the base's numbers that an agent changed. A change is `unique` if no other
agent touched that number, else `shared`. Averaging three agents would divide every unique change by three. RAM keeps
it whole and averages only what is shared; RAM+ also multiplies an agent's unique changes by its `scale`.

2. Merge them with RAM+"""
ROUNDING = """\
Look at the last column: checkpoints are stored in bfloat16, where a number has few neighbours, and a change times
{scale:.2f} often rounds back to the change. Where the share is near zero, RAM+ stored this way equals RAM; `--rounding
stochastic` keeps the scale on average, `--dtype float32` exactly.

The scales come from a formula with a guessed constant, 0.1. Its variant `ram_plus_auto` measures them, so that what
averaging takes from an agent is made up where only that agent changed something: here {measured}.
Of all that works element by element it did best where nothing can be tuned; `wudi_auto`, which looks at whole matrices,
is recommended for larger agents. docs/evidence.md tells why, and what speaks against it.

The merged checkpoint is in {out}; transformers, vLLM and SGLang load it as it is."""
SCORES = "3. Are the skills there?"
SPLIT = "Right answers in %, {count} prompts of {split} per column, +- one standard error"
STOPPED = "Stopped. The merge in {out} is whole; {done} of {models} models were scored."
NEXT = """\
Look again at what was done:
  {inspect}
Your own agents, trained from one base (folders with safetensors, as TRL, verl or OpenRLHF write them):
  agentmerge probe --base BASE --agent code=CODER --agent tool=TOOLER
  agentmerge merge --base BASE --agent code=CODER --agent tool=TOOLER --out merged \\
    --method wudi_auto --rounding stochastic"""
NO_SCORES = """\
The scores of base, agents and every method appear here with torch and transformers installed, in about {minutes}
minutes:
  python -m pip install -e '.[eval]' && agentmerge demo           in a clone of agentmerge
  python -m pip install 'agentmerge[eval]' && agentmerge demo     elsewhere"""


def demo(
    out: Annotated[Path, typer.Option(help="Where the merged checkpoint goes.")] = Path("agentmerge-demo"),
    scores: Annotated[
        bool, typer.Option("--scores/--no-scores", help="Score every method, where torch and transformers are there.")
    ] = True,
    json: Json = False,
    quiet: Quiet = False,
) -> None:
    """Merge three tiny real agents that are inside the package, and see what happens.

    Takes seconds. With torch and transformers 14 models are scored then, which takes about 3 minutes; Ctrl-C keeps the
    merge.
    """
    silent, scoring = quiet or json, scores and generate.available()
    wanted = recipe({"name": "ram_plus"})
    tell(silent, TIME[scoring].format(minutes=MINUTES, models=MODELS), INTRODUCTION)
    tell(silent, overlap_table(probe(wanted).survey), OVERLAP)
    record = merge(wanted, out, overwrite=is_demo(out, wanted))
    with printing(f"The merge is complete in {out}"):
        measured = probe(recipe({"name": "ram_plus_auto"})).survey
        tell(silent, rounding_table(record.rounding), scales_text(record.survey, measured, out))
        scored = contest(quiet) if scoring else []
        tell(silent or not scored, *contest_tables(scored))
        if scores and not scoring:
            tell(silent, NO_SCORES.format(minutes=MINUTES))
        if json:
            say({"record": record, "scores": [score_facts(row) for row in scored]}, as_json=True)
    if scoring and len(scored) < MODELS:
        typer.echo(STOPPED.format(out=out, done=len(scored), models=MODELS), err=True)
        raise typer.Exit(INTERRUPTED)
    tell(silent, NEXT.format(inspect=shlex.join(["agentmerge", "inspect", str(out)])))


def tell(silent: bool, *parts: str | Table) -> None:
    """Print paragraphs and tables, and an empty line after them."""
    if not silent:
        say([Prose(part) if isinstance(part, str) else part for part in parts])
        typer.echo()


def is_demo(out: Path, wanted: Recipe) -> bool:
    """Whether an earlier demo wrote this folder and nothing was added since: nothing else is replaced."""
    try:
        found = MergeRecord.load(out).recipe
    except SurveyError:
        return False
    written = {path.name for path in Path(wanted.base).iterdir()} | {RECORD, "README.md"}
    return found == wanted.dump() and {path.name for path in out.iterdir()} <= written


def scales_text(merged: SurveySummary, measured: SurveySummary, out: Path) -> str:
    """What rounding makes of the scales, and how large `ram_plus_auto` makes them."""
    scale = max(agent.scale or 1.0 for agent in merged.agents.values())
    others = ", ".join(f"{name} {agent.scale:.1f}" for name, agent in measured.agents.items())
    return ROUNDING.format(scale=scale, measured=others, out=out)


def contest(quiet: bool) -> list[Row]:
    """Score everything, saying on stderr what is being scored; Ctrl-C ends it with what is scored by then."""
    scored: list[Row] = []
    begun = monotonic()

    def watch(label: str) -> None:
        if not quiet:
            typer.echo(
                f"scoring {len(scored) + 1} of {MODELS}: {label}{_left(len(scored), monotonic() - begun)}", err=True
            )

    try:
        for row in rows(watch=watch):
            scored.append(row)
    except (Stopped, KeyboardInterrupt) as stop:
        if isinstance(stop, Stopped) and stop.code != INTERRUPTED:
            raise
        return scored
    if not quiet:
        typer.echo(f"scored {MODELS} models in {_minutes(monotonic() - begun)}", err=True)
    return scored


def _left(done: int, seconds: float) -> str:
    return f", about {_minutes(seconds / done * (MODELS - done))} left" if done else ""


def _minutes(seconds: float) -> str:
    return f"{seconds / 60:.0f} minutes" if seconds >= 90 else f"{seconds:.0f} seconds"


def contest_tables(scored: Sequence[Row]) -> list[Any]:
    """The scores on dev and test; nothing where there are none."""
    parts: list[Any] = [SCORES] if scored else []
    for split, count in COUNT.items() if scored else ():
        parts += [SPLIT.format(count=count, split=split), score_table(scored, split)]
    return parts


def score_facts(row: Row) -> dict[str, Any]:
    """The scores of one model as plain data: per split the share of right answers of every sub-task."""
    shares = {split: {str(task): score.share(task) for task in score.right} for split, score in row.scores.items()}
    return {"model": row.label, "kind": row.kind, "scores": shares}


def score_table(rows: Sequence[Row], split: Any) -> Any:
    """The paper's table 1: base, specialists and merges against the sub-tasks, and their average."""
    tasks = list(rows[0].scores[split].right)
    table = Table("", [Column("model", "name"), *(Column(str(task)) for task in (*tasks, "average"))])
    for previous, row in zip([None, *rows], rows, strict=False):
        if previous and previous.kind != row.kind:
            table.section()
        score = row.scores[split]
        cells = [f"{100 * score.share(task):.1f}" for task in tasks]
        table.add(row.label, *cells, f"{100 * score.mean():.1f} +- {100 * score.error():.1f}")
    return table
