"""Which tables a comparison makes, as plain cells: what every format writes in its own way."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Literal

from agentmerge.eval.compare.rows import MEAN

if TYPE_CHECKING:
    from agentmerge.eval.compare.rows import CellRow, Comparison, UnitRow

DASH = "-"
Mark = Literal["best", "second", ""]


@dataclass(frozen=True)
class Shown:
    """One cell."""

    text: str
    """Without its error."""
    error: str = ""
    mark: Mark = ""
    beats: bool = False
    """Above the specialist."""


@dataclass(frozen=True)
class Grid:
    """One table."""

    title: str
    heads: list[str]
    """The first one is of the rows' names."""
    rows: list[tuple[str, list[Shown]]]
    breaks: set[int] = field(default_factory=set)
    """Numbers of the rows before which another role begins."""

    @property
    def marked(self) -> bool:
        """Whether a cell of it is above a specialist's."""
        return any(cell.beats for _, cells in self.rows for cell in cells)


def legend(found: Comparison) -> dict[str, str]:
    """What marks mean: "best", "second" and "beats"."""
    merged = any(model.role == "merged" for model in found.models)
    return {
        "best": f"best of {'the merged models' if merged else 'all'}",
        "second": "second best of them",
        "beats": "above the specialist of that skill, in the mean above the best agent",
    }


def grids(found: Comparison) -> list[Grid]:
    """Skills and their mean, differences, what is kept of each skill, each skill's columns, and published rows."""
    units = [*found.skills(), found_mean(found)]
    every = [score_grid(found, "Scores in %, with standard errors", units, timed=True), difference_grid(found, units)]
    if found.retention:
        every.append(retention_grid(found))
    several = [skill for skill in found.skills() if len(found.columns(skill.skill)) > 1]
    every += [score_grid(found, f"{skill.label}: every column", found.columns(skill.skill)) for skill in several]
    if found.references:
        every.append(published_grid(found))
    return every


def found_mean(found: Comparison) -> UnitRow:
    """The unit of the mean."""
    return next(unit for unit in found.units if unit.id == MEAN)


def score_grid(found: Comparison, title: str, units: list[UnitRow], timed: bool = False) -> Grid:
    """Models in rows, units in columns.

    Args:
        found: the comparison.
        title: of the table.
        units: its columns.
        timed: whether the merging time stands last.
    """
    seconds = timed and any(model.seconds is not None for model in found.models)
    rows, breaks = [], set()
    for number, model in enumerate(found.models):
        if number and found.models[number - 1].role != model.role:
            breaks.add(number)
        cells = [_shown(found.cell(model.name, unit.id)) for unit in units]
        rows.append((model.name, [*cells, *([Shown(_seconds(model.seconds))] if seconds else [])]))
    heads = ["model", *(_head(found, unit) for unit in units), *(["merge, s"] if seconds else [])]
    return Grid(title, heads, rows, breaks)


def published_grid(found: Comparison) -> Grid:
    """Rows of others under the columns and skills that bear the same name, and what has none here."""
    named = [unit for unit in found.units if any(unit.id in row.scores for row in found.references)]
    elsewhere = list(dict.fromkeys(name for row in found.references for name in row.elsewhere))
    rows, breaks = [], set()
    for number, row in enumerate(found.references):
        if number and found.references[number - 1].source != row.source:
            breaks.add(number)
        scores = [*(row.scores.get(unit.id) for unit in named), *map(row.elsewhere.get, elsewhere), row.mean]
        rows.append((f"{row.label} [{row.source}]", [Shown(_percent(score)) for score in scores]))
    heads = ["published", *(unit.label for unit in named), *elsewhere, "mean, own columns"]
    return Grid("Published, in %: other bases, agents and items", heads, rows, breaks)


def difference_grid(found: Comparison, units: list[UnitRow]) -> Grid:
    """Each model less the chosen one, in points with 95 % intervals: the paper's table 3."""
    rows, roles, breaks = [], {model.name: model.role for model in found.models}, set()
    names = [model.name for model in found.models if model.name != found.against]
    for number, name in enumerate(names):
        if number and roles[names[number - 1]] != roles[name]:
            breaks.add(number)
        own = {one.unit: one for one in found.differences if one.row == name}
        rows.append(
            (
                name,
                [
                    Shown(
                        f"{100 * own[unit.id].value:+.1f}",
                        f"{100 * own[unit.id].low:.1f} to {100 * own[unit.id].high:.1f}",
                    )
                    if unit.id in own
                    else Shown(DASH)
                    for unit in units
                ],
            )
        )
    title = f"Points above {found.against}, with 95 % intervals (paired bootstrap over items)"
    return Grid(title, ["model", *(unit.label for unit in units)], rows, breaks)


def retention_grid(found: Comparison) -> Grid:
    """What each merge keeps of what each specialist gained."""
    skills = [unit for unit in found.skills() if any(row.skill == unit.skill for row in found.retention)]
    agents = {row.skill: row.agent for row in found.retention}
    rows = []
    for merged in dict.fromkeys(row.merged for row in found.retention):
        own = {row.skill: row for row in found.retention if row.merged == merged}
        cells = []
        for unit in skills:
            row = own.get(unit.skill)
            if row is None or row.value is None or row.low is None or row.high is None:
                cells.append(Shown(DASH))
            else:
                cells.append(Shown(f"{row.value:.0%}", f"{row.low:.0%} to {row.high:.0%}"))
        rows.append((merged, cells))
    title = "Kept of what the specialist gained over the base, with 95 % intervals (Fieller)"
    return Grid(title, ["merge", *(f"{unit.label} ({agents[unit.skill]})" for unit in skills)], rows)


def _head(found: Comparison, unit: UnitRow) -> str:
    """A unit's label; of a column, alone in its skill or not, its items, where every row has as many."""
    columns = [one for one in found.units if one.kind == "column" and [one.id] == unit.columns and unit.kind != "mean"]
    counts = {cell.n for one in columns for cell in found.cells if cell.unit == one.id and cell.n is not None}
    name = unit.label if not columns or columns[0].label == unit.label else f"{unit.label}: {columns[0].label}"
    return f"{name} (n={counts.pop()})" if len(counts) == 1 else name


def _shown(cell: CellRow) -> Shown:
    if cell.mean is None:
        return Shown(DASH)
    error = "" if cell.error is None else f"{100 * cell.error:.1f}"
    mark: Mark = {1: "best", 2: "second"}.get(cell.rank or 0, "")  # type: ignore[assignment]
    return Shown(f"{100 * cell.mean:.1f}", error, mark, bool(cell.beats))


def _percent(value: float | None) -> str:
    return DASH if value is None else f"{100 * value:.1f}"


def _seconds(value: float | None) -> str:
    return DASH if value is None else f"{value:.1f}"
