"""What `agentmerge eval` prints for people."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from agentmerge.cli.eval_progress import duration
from agentmerge.cli.table import Column, Prose, Table

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path

    from agentmerge.eval.plan import SuitePlan
    from agentmerge.eval.record import EvalRecord, SuiteFacts
    from agentmerge.eval.statistics import Summary

Parts = list[Any]


def plan_parts(plans: Mapping[str, SuitePlan]) -> Parts:
    """A row per suite, and its settings."""
    table = Table(
        "What it will cost",
        [
            Column("suite", "name"),
            *map(Column, ("items", "turns", "requests", "prompt tokens", "new tokens at most")),
        ],
    )
    for name, plan in plans.items():
        about = "" if plan.counted else "about "
        numbers = (f"{plan.items:,}", f"{plan.turns:,}", f"{plan.requests:,}", f"{about}{plan.prompt_tokens:,}")
        table.add(name, *numbers, f"{plan.most_new_tokens:,}")
    notes = "" if all(plan.counted for plan in plans.values()) else "Four characters are taken for a token."
    more = "Later turns hold what a model answers: their prompts are longer, or there are fewer of them."
    turns = more if any(plan.turns > 1 for plan in plans.values()) else ""
    told = " ".join(filter(None, (notes, turns)))
    settings = [settings_text(name, plan.preset, plan.settings) for name, plan in plans.items()]
    return [table, *([Prose(told)] if told else []), *map(Prose, settings)]


def record_parts(record: EvalRecord, names: Sequence[str], out: Path) -> Parts:
    """The scores of these suites, what they cost and their settings."""
    table = Table(
        f"Scores of {record.model.name} in %",
        [Column("suite", "name"), Column("column", "name"), *map(Column, ("items", "mean", "+-", "95 % interval"))],
    )
    for name in names:
        table.section()
        for column in record.suites[name].columns.values():
            table.add(name, column.label, f"{column.n:,}", *score_cells(column))
    told = [suite_text(name, record.suites[name]) for name in names]
    return [table, *map(Prose, told), Prose(f"Everything is in {out}; `agentmerge eval compare` reads it.")]


def score_cells(column: Summary) -> tuple[str, str, str]:
    """Mean, standard error and interval in %."""
    if column.mean is None:
        return "-", "", ""
    error = "" if column.error is None else f"{100 * column.error:.1f}"
    between = "" if column.interval is None else " to ".join(f"{100 * end:.1f}" for end in column.interval)
    return f"{100 * column.mean:.1f}", error, between


def suite_text(name: str, facts: SuiteFacts) -> str:
    """What was asked how, in a paragraph."""
    tokens = facts.tokens.generated
    parts = [
        f"{facts.requests:,} requests",
        f"{tokens:,} new tokens" if tokens is not None else "",
        f"{facts.cut_off:,} answers cut off at max_tokens" if facts.cut_off else "",
        f"{facts.empty.answers:,} empty ones" if facts.empty.answers else "",
        f"{duration(facts.seconds)} of answering",
    ]
    data = "; ".join(f"{file.name}, {file.items:,} items, sha256 {file.sha256[:12]}" for file in facts.data[:3])
    more = f"; and {len(facts.data) - 3} more files" if len(facts.data) > 3 else ""
    asked = f"{name}: {', '.join(filter(None, parts))}. Data: {data}{more}."
    return f"{asked} {settings_text('Settings', facts.preset, facts.settings)}"


def settings_text(head: str, preset: str, settings: Mapping[str, Any]) -> str:
    """Every setting as it would be written."""
    shown = ", ".join(f"{name} {_written(value)}" for name, value in settings.items())
    return f"{head} (preset {preset}): {shown}."


def _written(value: Any) -> str:
    if isinstance(value, list):
        return ",".join(map(str, value)) or "none"
    if value is None or isinstance(value, bool):
        return {None: "null", True: "true", False: "false"}[value]
    return str(value) or '""'
