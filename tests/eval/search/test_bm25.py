"""BM25 finds passages as its formula says, keeps its index, and refuses one of another corpus."""

from __future__ import annotations

import json
import math
import re
from collections import Counter
from typing import TYPE_CHECKING, Any

import pytest

from agentmerge.errors import EvalError
from agentmerge.eval.generators.replay import Scripted
from agentmerge.eval.run import Job, evaluate
from agentmerge.eval.search.bm25 import Bm25
from agentmerge.eval.suite import Given
from agentmerge.eval.suites.search import Search

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from agentmerge.eval.request import Request

K1, B = 0.9, 0.4


@pytest.fixture
def corpus(data_dir: Path) -> Path:
    pytest.importorskip("bm25s", reason="pip install bm25s; the extra eval brings it")
    return data_dir / "corpus.jsonl"


def by_formula(passages: list[str], query: str) -> list[int]:
    """Lucene's BM25, word for word, and nothing that shares no word."""
    bags = [Counter(re.findall(r"\b\w\w+\b", text.lower())) for text in passages]
    average = sum(bag.total() for bag in bags) / len(bags)

    def score(bag: Counter[str]) -> float:
        total = 0.0
        for word in re.findall(r"\b\w\w+\b", query.lower()):
            having = sum(word in other for other in bags)
            rarity = math.log(1 + (len(bags) - having + 0.5) / (having + 0.5))
            total += rarity * bag[word] / (bag[word] + K1 * (1 - B + B * bag.total() / average))
        return total

    scores = [score(bag) for bag in bags]
    return sorted((n for n in range(len(bags)) if scores[n] > 0), key=lambda n: (-scores[n], n))


@pytest.mark.slow
@pytest.mark.parametrize(
    "query", ["Corvwick", "mayor Dunmane river", "town Bexlhaven Eastbrook mayor", "zzz", "", "19"]
)
def test_it_ranks_as_its_formula_says(tmp_path: Path, corpus: Path, query: str) -> None:
    texts = [f"{row['title']} {row['text']}" for row in map(json.loads, filter(None, corpus.read_text().split("\n")))]
    texts = [
        re.sub(r"\b(is|a|the|of|on)\b", "", text, flags=re.IGNORECASE) + " pad" * n for n, text in enumerate(texts)
    ]
    path = tmp_path / "corpus.jsonl"
    path.write_text("\n".join(json.dumps({"contents": text}) for text in texts))
    assert Bm25(path, None, K1, B).search(query, 5) == [texts[n] for n in by_formula(texts, query)[:5]]


@pytest.mark.slow
def test_an_index_is_kept_and_is_of_one_corpus(tmp_path: Path, corpus: Path) -> None:
    index = tmp_path / "index"
    first = Bm25(corpus, index, K1, B).search("Corvwick", 1)
    assert first[0].startswith("Corvwick\nCorvwick is a small town")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["data", "index"]
    assert Bm25(corpus, index, K1, B).search("Corvwick", 1) == first
    with pytest.raises(EvalError, match="Remove the folder, or name another one"):
        Bm25(corpus, index, 1.2, B).search("Corvwick", 1)
    corpus.write_text(corpus.read_text() + "\n" + json.dumps({"contents": "another"}))
    with pytest.raises(EvalError, match="an index of"):
        Bm25(corpus, index, K1, B).search("Corvwick", 1)


@pytest.mark.slow
@pytest.mark.parametrize("content", ["", "\n\n", "{", '{"title": "x"}', "[1]"])
def test_a_corpus_of_another_layout_is_told(corpus: Path, content: str) -> None:
    corpus.write_text(content)
    with pytest.raises(EvalError, match=r"corpus\.jsonl") as caught:
        Bm25(corpus, None, K1, B).search("x", 1)
    assert '"contents"' in str(caught.value)


@pytest.mark.slow
def test_a_model_that_searches_finds_everything(
    data_dir: Path, corpus: Path, model: Callable[[Request], str], tmp_path: Path
) -> None:
    settings: dict[str, Any] = {"passages": 3, "index": str(tmp_path / "index")}
    suite = Search.make("chat", Given(data_dir), **settings)
    assert suite.requires() == []
    record = evaluate("m", [Job(suite)], Scripted(model), tmp_path / "out")
    found = record.suites["search"]
    assert found.columns["nq"].mean == found.columns["2wikimultihopqa"].mean == 1
    assert [(file.name, file.items) for file in found.data] == [
        ("nq.jsonl", 3),
        ("2wikimultihopqa.jsonl", 2),
        ("corpus.jsonl", 20),
    ]
    assert "bm25s" in record.versions
