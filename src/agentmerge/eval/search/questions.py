"""Questions and their right answers, from JSON lines or Parquet in the layouts that are around."""

from __future__ import annotations

import json
from importlib.util import find_spec
from typing import TYPE_CHECKING, NamedTuple

from agentmerge.errors import EvalError, Problem, Where, shown
from agentmerge.eval.data import Hub, Need

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from agentmerge.eval.request import JSON

FORM = '{"question": ..., "golden_answers": [...]}, and "data_source": name where a file holds several sets'
HUB = "sunhaonlp/ZeroSearch_dataset"
ORIGIN = f"https://huggingface.co/datasets/{HUB}"
NEED = Need("search", "zerosearch_test.jsonl", ORIGIN, ("question", "data_source"), Hub(HUB))
KINDS = (".jsonl", ".parquet")
TOGETHER = "zerosearch_test"
"""What ZeroSearch's file of all sets, test.parquet on the hub, is called in a data folder."""


class Asked(NamedTuple):
    """One question."""

    id: str
    text: str
    answers: tuple[str, ...]


def path_of(folder: Path, name: str) -> Path | None:
    """The file of a set: NAME.jsonl or NAME.parquet, else ZeroSearch's file of all sets."""
    files = [folder / f"{stem}{kind}" for stem in (name, TOGETHER) for kind in KINDS]
    return next((file for file in files if file.is_file()), None)


def problems(folder: Path, name: str) -> list[Problem]:
    """Why the questions of a set can't be read: no file, or no library for it."""
    path = path_of(folder, name)
    if path is None:
        todo = (
            f"Put {name}.jsonl there, or test.parquet of {ORIGIN} as {TOGETHER}.parquet; `agentmerge eval fetch search "
            "--data-dir DIR` does so where the hub can be reached."
        )
        where = Where(path=str(folder))
        return [Problem(f"search: no questions of '{name}' in {folder}", expected=FORM, todo=todo, where=where)]
    if path.suffix == ".parquet" and find_spec("pyarrow") is None:
        todo = (
            "pip install pyarrow; or convert the file where pandas and pyarrow are: "
            f'pandas.read_parquet("{path.name}").to_json("{path.stem}.jsonl", orient="records", lines=True).'
        )
        return [Problem(f"{path}: reading Parquet needs pyarrow", todo=todo, where=Where(path=str(path)))]
    return []


def read_questions(path: Path, name: str) -> list[Asked]:
    """The questions of one set in the file's order; rows of other sets are passed over.

    Raises:
        EvalError: it can't be read, a row is something else, or no row is of this set.
    """
    where = Where(path=str(path))
    try:
        rows = list(_rows(path))
        found = [_asked(row, place) for place, row in enumerate(rows) if row.get("data_source", name) == name]
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        said = f"{path}: can't be used: {type(error).__name__}: {shown(str(error))}"
        raise EvalError(said, expected=FORM, where=where) from None
    if not found:
        others = sorted({str(row.get("data_source")) for row in rows})
        raise EvalError(f"{path}: no question of '{name}', but of {', '.join(others) or 'nothing'}", where=where)
    return found


def _rows(path: Path) -> Iterator[JSON]:
    if path.suffix == ".parquet":
        from pyarrow import parquet

        yield from parquet.read_table(path).to_pylist()
        return
    with path.open("rb") as file:
        yield from (json.loads(line) for line in file if line.strip())


def _asked(row: JSON, place: int) -> Asked:
    answers = _answers(row)
    if not answers or not all(isinstance(answer, str) for answer in answers):
        raise ValueError(f"row {place + 1}: its right answers are {shown(answers)}")
    question = row["question"].strip()
    if not question:
        raise ValueError(f"row {place + 1}: an empty question")
    return Asked(str(row.get("id") or place), question, tuple(answers))


def _answers(row: JSON) -> list[str]:
    """Under any of the names that FlashRAG, Search-R1, ZeroSearch and the sets themselves give them."""
    for name in ("golden_answers", "answers", "answer"):
        if row.get(name) is not None:
            return [row[name]] if isinstance(row[name], str) else list(row[name])
    truth = row["reward_model"]["ground_truth"]
    return list(truth["target"] if isinstance(truth, dict) else truth)
