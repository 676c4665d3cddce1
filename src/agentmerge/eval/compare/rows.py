"""A comparison as rows: every list loads as a table."""

from __future__ import annotations

from typing import Any, Literal

from pydantic import Field

from agentmerge.frozen import Frozen, Record

RoleName = Literal["base", "agent", "merged"]
MEAN = "mean"
"""The id of the plain mean of all columns."""


class ModelRow(Frozen):
    """A model that was evaluated."""

    name: str
    role: RoleName
    folder: str
    """Where its evaluation lies."""
    method: str | None = None
    """Of a merge, in a few words."""
    seconds: float | None = None
    """Of a merge: its passes, reading and writing included."""
    skills: list[str] = Field(default_factory=list)
    """Of an agent: those that it is the specialist of."""


class UnitRow(Frozen):
    """What a score is given for: a column, the mean of a skill's columns, or that of all."""

    id: str
    label: str
    kind: Literal["column", "skill", "mean"]
    skill: str
    """Of a column and a skill; "" of the mean."""
    columns: list[str]
    """Ids of the columns whose plain mean it is."""
    part: bool = False
    """A column whose items count in another column of its suite: not in the means."""


class CellRow(Frozen):
    """One model's score in one unit, 0 to 1."""

    row: str
    unit: str
    mean: float | None
    """None where a suite is missing or nothing counts."""
    error: float | None
    """Standard error."""
    n: int | None
    """Items that count; of a column."""
    rank: Literal[1, 2] | None = None
    """Best or second best of the merged models, of all where none is merged; ties share a rank."""
    beats: bool | None = None
    """Of a merged model: whether it is above the specialist, in the mean above the best agent."""


class DifferenceRow(Frozen):
    """Two models in one unit, the first less the second."""

    row: str
    against: str
    unit: str
    value: float
    error: float
    """Paired standard error."""
    low: float
    high: float
    """95 % interval by paired bootstrap."""
    p: float
    """Of a swap test, for this difference alone."""


class RetentionRow(Frozen):
    """(merged - base) / (agent - base) of a skill and its specialist."""

    merged: str
    agent: str
    skill: str
    gained: float
    """agent - base."""
    kept: float
    """merged - base."""
    value: float | None
    """None where the agent's gain is not told from 0: there is nothing to keep."""
    low: float | None
    high: float | None
    """95 % interval (Fieller)."""


class Judgement(Frozen):
    """One thing that the scores say, and what follows."""

    rule: str
    """Its name in docs/evaluation.md."""
    rows: list[str]
    """Whom it is about."""
    units: list[str]
    """Where."""
    text: str
    """In plain sentences, with the numbers."""
    change: dict[str, Any] | None = None
    """Of the recipe, as its fields: {"agents": {"tool": {"weight": 0.5}}} or {"rules": [...]}, or {"leave_out": [...]}
    or {"use": NAME} in place of a merge."""


class ReferenceRow(Frozen):
    """A row that somebody published."""

    source: str
    """Its name in the data file."""
    label: str
    table: str
    """Paper and table."""
    scores: dict[str, float]
    """By unit of this comparison, 0 to 1."""
    elsewhere: dict[str, float]
    """By the name that the source gives it: what has no column here."""
    mean: float | None = None
    """The mean as published, over the source's own columns."""


class Comparison(Record):
    """Everything that evaluations side by side say."""

    format: str = "agentmerge.comparison/1"
    models: list[ModelRow]
    units: list[UnitRow]
    cells: list[CellRow]
    against: str
    """The row that `differences` are to."""
    differences: list[DifferenceRow]
    retention: list[RetentionRow]
    verdict: list[Judgement]
    references: list[ReferenceRow] = Field(default_factory=list)
    notes: list[str] = Field(default_factory=list)
    settings: dict[str, Any]
    """Seed, draws, swaps and level."""

    def cell(self, row: str, unit: str) -> CellRow:
        """One of the cells."""
        return next(cell for cell in self.cells if (cell.row, cell.unit) == (row, unit))

    def rows(self) -> list[dict[str, Any]]:
        """A row per model and unit for a table, such as `pandas.DataFrame(comparison.rows())`."""
        roles = {model.name: model.role for model in self.models}
        labels = {unit.id: unit.label for unit in self.units}
        return [{**cell.model_dump(), "role": roles[cell.row], "label": labels[cell.unit]} for cell in self.cells]

    def skills(self) -> list[UnitRow]:
        """The units that are skills."""
        return [unit for unit in self.units if unit.kind == "skill"]

    def columns(self, skill: str) -> list[UnitRow]:
        """The columns of a skill, parts of others included."""
        return [unit for unit in self.units if unit.kind == "column" and unit.skill == skill]
