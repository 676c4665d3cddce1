"""What an evaluation left in its folder: the record, and the scores of every item for paired comparisons."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from agentmerge.errors import EvalError, Where
from agentmerge.eval.lines import read_lines, write_lines
from agentmerge.eval.record import EvalRecord
from agentmerge.eval.suite import Cell

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from agentmerge.eval.suite import Item

SCORES = "scores.jsonl"


@dataclass(frozen=True)
class ItemScore:
    """What one item contributes to each metric."""

    item: str
    group: str
    metrics: Mapping[str, Cell]


@dataclass(frozen=True)
class Results:
    """One model's folder."""

    folder: Path
    record: EvalRecord
    scores: dict[str, tuple[ItemScore, ...]]
    """By suite, in the order of its items: the same items for every model that was asked alike."""


def load_results(folder: Path | str) -> Results:
    """Read a folder that `agentmerge eval` wrote.

    Raises:
        EvalError: there is no record, or the scores of one of its suites can't be read.
    """
    record, place = EvalRecord.load(folder), Path(folder)
    return Results(place, record, {suite: load_scores(place, suite) for suite in record.suites})


def load_scores(folder: Path, suite: str) -> tuple[ItemScore, ...]:
    """The scores of a suite's items.

    Raises:
        EvalError: they can't be read.
    """
    path = folder / suite / SCORES
    try:
        return tuple(
            ItemScore(line["item"], line["group"], {name: Cell(*cell) for name, cell in line["metrics"].items()})
            for line in read_lines(path)
        )
    except (KeyError, TypeError, AttributeError) as error:
        expected = '{"suite", "item", "group", "metrics": {name: [value, weight]}} on every line'
        raise EvalError(f"{path}: {error!r}", expected=expected, where=Where(path=str(path))) from None


def save_scores(folder: Path, suite: str, items: Sequence[Item], cells: Sequence[Mapping[str, Cell]]) -> None:
    """Write the scores of a suite's items, all at once.

    Raises:
        OutputError: they can't be written there.
    """
    write_lines(
        folder / suite / SCORES,
        (
            {"suite": suite, "item": item.id, "group": item.group, "metrics": {k: list(v) for k, v in metrics.items()}}
            for item, metrics in zip(items, cells, strict=True)
        ),
    )
