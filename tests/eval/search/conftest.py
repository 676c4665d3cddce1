"""Twenty paragraphs, five questions over them, and a model that searches, reads and answers."""

from __future__ import annotations

import json
import re
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from pathlib import Path

    from agentmerge.eval.request import Request

TOWNS = tuple(
    f"{begin}{end}" for begin in ("Arle", "Bexl", "Corv", "Dunm", "East") for end in ("ane", "wick", "haven", "brook")
)
RIVERS = tuple(f"{town[::-1].capitalize()}water" for town in TOWNS)


@pytest.fixture
def data_dir(tmp_path: Path) -> Path:
    """corpus.jsonl, nq.jsonl of three questions and 2wikimultihopqa.jsonl of two, which take two searches."""
    folder = tmp_path / "data"
    folder.mkdir()
    passages = [
        {"title": town, "text": f"{town} is a small town on the river {river}. The mayor of {town} is Mayor {number}."}
        for number, (town, river) in enumerate(zip(TOWNS, RIVERS, strict=True))
    ]
    (folder / "corpus.jsonl").write_text("\n\n".join(map(json.dumps, passages)))
    one = [
        {
            "id": f"test_{n}",
            "question": f"which river is {TOWNS[n]} on",
            "golden_answers": [RIVERS[n], f"the {RIVERS[n]}"],
        }
        for n in (9, 2, 11)
    ]
    two = [
        {"question": f"Who is the mayor of the town on the river {RIVERS[n]}?", "golden_answers": [f"Mayor {n}"]}
        for n in (4, 19)
    ]
    (folder / "nq.jsonl").write_text("\n".join(map(json.dumps, one)))
    (folder / "2wikimultihopqa.jsonl").write_text("\n".join(map(json.dumps, two)))
    return folder


def searcher(request: Request) -> str:
    """Searches for what the question names, then for the town that it read of, and answers from what it read alone."""
    text = request.text
    question = re.findall(r"Question: (.*)", text)[-1]
    read = " ".join(re.findall(r"<information>(.*?)</information>", text, re.DOTALL))
    if town := re.search(r"which river is (\w+) on\?", question):
        found = re.search(rf"{town[1]} is a small town on the river (\w+)", read)
        return f"<answer> {found[1]} </answer>" if found else f"<think>hm</think><search> river of {town[1]} </search>"
    river = re.search(r"on the river (\w+)\?", question)
    assert river
    place = re.search(rf"(\w+) is a small town on the river {river[1]}", read)
    if place is None:
        return f"<search>town on {river[1]}</search>"
    mayor = re.search(rf"mayor of {place[1]} is (Mayor \d+)", read)
    searched = text.count("<information>") - 1  # the instruction has one
    return f"<answer>It is {mayor[1]}</answer>" if mayor and searched > 1 else f"<search>mayor of {place[1]}</search>"


@pytest.fixture
def model() -> object:
    return searcher
