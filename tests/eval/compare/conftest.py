"""Evaluations made by hand: folders as `agentmerge eval` writes them, from the scores of items."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pytest

from agentmerge.eval.compare.comparison import compare
from agentmerge.eval.compare.roles import entries_of
from agentmerge.eval.statistics import summary
from agentmerge.eval.suite import Cell, Column

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence
    from pathlib import Path

    from agentmerge.eval.compare.rows import Comparison


class Made:
    """One model's folder."""

    def __init__(self, folder: Path, merge: Mapping[str, Any] | None = None, path: str | None = None) -> None:
        self.folder = folder
        self.record: dict[str, Any] = {
            "format": 1,
            "versions": {},
            "model": {"name": folder.name, "path": path, "generator": {"kind": "replay"}, "merge": merge},
            "suites": {},
        }

    def suite(
        self,
        name: str,
        domain: str,
        groups: Mapping[str, Sequence[Any]],
        columns: Sequence[Column] | None = None,
        **facts: Any,
    ) -> Made:
        """A suite of items "GROUP NUMBER", each with the metric `right`: a number, or a value and a weight.

        Without columns it has one over all items, of the suite's name.
        """
        lines = [
            {"suite": name, "item": f"{group} {number}", "group": group, "metrics": _metrics(score)}
            for group, scores in groups.items()
            for number, score in enumerate(scores)
        ]
        scored = [(line["group"], {k: Cell(*cell) for k, cell in line["metrics"].items()}) for line in lines]
        found = columns or (Column(name, "right", name.upper()),)
        self.record["suites"][name] = {
            "domain": domain, "preset": "paper", "settings": {}, "data": [], "items": len(lines),
            "columns": {
                column.name: {
                    **summary(column, scored).model_dump(), "label": column.label, "metric": column.metric,
                    "groups": column.groups, "combine": column.combine, "counts": column.counts,
                }
                for column in found
            },
            "requests": 0, "tokens": {"prompt": None, "generated": None}, "cut_off": 0, "seconds": 0, **facts,
        }  # fmt: skip
        self.scores(name, lines)
        return self

    def scores(self, name: str, lines: Sequence[Mapping[str, Any]]) -> None:
        """Write a suite's lines, and the record as it is."""
        (self.folder / name).mkdir(parents=True, exist_ok=True)
        text = "".join(json.dumps(line) + "\n" for line in lines)
        (self.folder / name / "scores.jsonl").write_text(text)
        (self.folder / "eval_record.json").write_text(json.dumps(self.record))


def _metrics(score: Any) -> dict[str, Any]:
    if isinstance(score, dict):
        return score
    return {"right": list(score) if isinstance(score, tuple) else [score, 1.0]}


@pytest.fixture
def made(tmp_path: Path) -> Callable[..., Made]:
    """A folder of a name, to be filled with suites."""
    return lambda name, **facts: Made(tmp_path / name, **facts)


def merge(method: str = "ram", seconds: float = 1.0, **agents: str) -> dict[str, Any]:
    """What a record says of a merged model."""
    return {
        "method": {"name": method},
        "seconds": seconds,
        "agents": {name: {"source": s} for name, s in agents.items()},
    }


def bits(right: int, of: int, first: int = 0) -> list[float]:
    """Scores of items: `right` of them right, from number `first` on."""
    return [float(first <= number < first + right) for number in range(of)]


@pytest.fixture
def comparison(tmp_path: Path) -> Callable[..., Comparison]:
    """Compare the folders of these names."""

    def call(*names: str, **options: Any) -> Comparison:
        return compare(entries_of([tmp_path / name for name in names]), **{"draws": 200, "swaps": 1999, **options})

    return call
