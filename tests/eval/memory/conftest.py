"""A tokenizer that needs no library, and dev files with a code to find in each document."""

from __future__ import annotations

import json
import random
import re
from dataclasses import dataclass
from typing import TYPE_CHECKING

import pytest

from agentmerge.eval.suite import DataFile

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

PLACES = 60


@dataclass(frozen=True)
class Words:
    """Every word with the space after it is a token."""

    path: object = None

    @classmethod
    def problems(cls, given: str | None, suite: str) -> list[object]:
        return []

    @property
    def data_file(self) -> DataFile:
        return DataFile("words", "a test's own", "", 1)

    def count(self, text: str) -> int:
        return len(self._starts(text))

    def counts(self, texts: Sequence[str]) -> list[int]:
        return [self.count(text) for text in texts]

    def cuts(self, text: str, size: int) -> list[int]:
        return [0, *self._starts(text)[size::size], len(text)]

    def without_middle(self, text: str, most: int) -> str:
        starts = self._starts(text)
        if len(starts) <= most:
            return text
        return text[: starts[most // 2]] + text[starts[len(starts) - (most + 1) // 2] :]

    def _starts(self, text: str) -> list[int]:
        return [found.start() for found in re.finditer(r"\S+\s*", text)]


@pytest.fixture
def words() -> Words:
    return Words()


def sentence(place: int) -> str:
    rng = random.Random(place)
    filler = " ".join(rng.choice(("river", "stone", "bridge", "1887", "king")) for _ in range(rng.randint(20, 60)))
    return f"{filler}. The code of town{place} is {place * 7919}. {filler}."


@pytest.fixture
def data_dir(tmp_path: Path) -> Path:
    """HotpotQA's and SQuAD's dev files; document n tells the code of town n, which question n asks for."""
    folder = tmp_path / "data"
    folder.mkdir()
    hotpotqa = [
        {
            "question": f"What is the code of town{place}?",
            "answer": str(place * 7919),
            "context": [[f"Title {near}", [sentence(near)]] for near in (place, (place + 1) % PLACES)],
        }
        for place in range(PLACES)
    ]
    paragraphs = [
        {
            "context": sentence(place),
            "qas": [
                {
                    "question": f"What is the code of town{place}?",
                    "is_impossible": False,
                    "answers": [{"text": str(place * 7919)}],
                }
            ],
        }
        for place in range(PLACES)
    ]
    squad = {"data": [{"paragraphs": paragraphs[start : start + 6]} for start in range(0, PLACES, 6)]}
    (folder / "hotpot_dev_distractor_v1.json").write_text(json.dumps(hotpotqa))
    (folder / "dev-v2.0.json").write_text(json.dumps(squad))
    return folder
