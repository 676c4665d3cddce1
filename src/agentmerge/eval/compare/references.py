"""Rows that were published: the paper's own and those of later work, from a data file, each with its table.

The file holds what could be read at its source, and says where; what could not is not there. Scores of other bases,
agents, harnesses and samples are for orientation: no test compares with them.
"""

from __future__ import annotations

import json
from importlib.resources import files
from pathlib import Path
from typing import TYPE_CHECKING

from pydantic import Field, ValidationError

from agentmerge.errors import EvalError, Where, did_you_mean
from agentmerge.eval.compare.rows import MEAN, ReferenceRow
from agentmerge.frozen import Frozen

if TYPE_CHECKING:
    from collections.abc import Sequence

    from agentmerge.eval.compare.rows import UnitRow

PAPER = "ram"
"""The paper's own numbers."""


class PublishedRow(Frozen):
    """One row of a table."""

    label: str
    table: str
    """Its number, for example "1"; "not noted" where it is not known."""
    scores: dict[str, float] = Field(default_factory=dict)
    """In %, by the id or the label of a column, or by a skill."""
    mean: float | None = None
    """In %, as published, over the source's own columns."""


class Published(Frozen):
    """A source."""

    name: str = ""
    title: str
    url: str
    read: str
    """Where its numbers were read."""
    setting: str
    """Base, agents and benchmarks, as far as they are known."""
    absent: str = ""
    """What could not be read."""
    rows: list[PublishedRow]


def published(name: str) -> Published:
    """A source of the data file, or a file of the user's own in its form.

    Raises:
        EvalError: there is none of this name, or it is not in that form.
    """
    own = Path(name)
    if own.suffix == ".json":
        return _parsed(own.stem, own)
    known = shipped()
    if name not in known:
        todo = f"{did_you_mean(name, known).strip()} Or give a .json file of that form."
        raise EvalError(f"--reference: no '{name}'", todo=todo)
    return known[name]


def shipped() -> dict[str, Published]:
    """What the package holds, by name."""
    text = files("agentmerge.eval.compare").joinpath("references.json").read_text(encoding="utf-8")
    return {name: Published.model_validate({**value, "name": name}) for name, value in json.loads(text).items()}


def matched(source: Published, units: Sequence[UnitRow]) -> list[ReferenceRow]:
    """A source's rows, their scores under the units of a comparison that bear the same id, label or skill."""
    names = {name.lower(): unit.id for unit in reversed(units) if unit.id != MEAN for name in (unit.label, unit.id)}
    names |= {unit.skill.lower(): unit.id for unit in units if unit.kind == "skill"}
    return [
        ReferenceRow(
            source=source.name,
            label=row.label,
            table=f"{source.title}, table {row.table}",
            scores={names[name.lower()]: score / 100 for name, score in row.scores.items() if name.lower() in names},
            elsewhere={name: score / 100 for name, score in row.scores.items() if name.lower() not in names},
            mean=None if row.mean is None else row.mean / 100,
        )
        for row in source.rows
    ]


def _parsed(name: str, path: Path) -> Published:
    where = Where(path=str(path))
    try:
        return Published.model_validate({**json.loads(path.read_bytes()), "name": name})
    except ValidationError as error:
        first = error.errors()[0]
        field = ".".join(map(str, first["loc"]))
        raise EvalError(f"{path}: not a reference: {field}: {first['msg']}.", where=where) from None
    except (OSError, ValueError, TypeError) as error:
        raise EvalError(f"{path}: can't be read: {error}.", where=where) from None
