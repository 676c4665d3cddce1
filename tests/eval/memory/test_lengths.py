"""Samples have the tokens that they are said to have."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from agentmerge.errors import EvalError
from agentmerge.eval.memory.documents import Pool, Question, context_of, read_squad
from agentmerge.eval.memory.lengths import Filler, costs_of
from agentmerge.eval.memory.samples import by_tokens

if TYPE_CHECKING:
    from pathlib import Path

    from agentmerge.eval.tokenizer import TextTokenizer


@pytest.mark.parametrize("tokens", [1200, 1500, 3000])
def test_samples_are_at_most_two_percent_shorter_than_asked(data_dir: Path, words: TextTokenizer, tokens: int) -> None:
    pool = read_squad(data_dir / "dev-v2.0.json")
    filler = Filler(pool, costs_of(pool, words), words)
    items = by_tokens(pool, "squad", range(20), tokens, 1, filler, words)
    for place, item in enumerate(items):
        documents = item.data["documents"]
        had = words.count(context_of(pool.documents[n] for n in documents)) + words.count(item.data["problem"]) + 32
        assert 0.98 * tokens <= had <= tokens
        assert len(set(documents)) == len(documents)
        assert set(pool.questions[place].own) <= set(documents)
    assert len({tuple(sorted(item.data["documents"])) for item in items}) > 10


def test_documents_of_the_same_article_come_first(data_dir: Path, words: TextTokenizer) -> None:
    pool = read_squad(data_dir / "dev-v2.0.json")
    question = pool.questions[8]
    places = Filler(pool, costs_of(pool, words), words).fill(question, 1500, "a")
    assert {*question.own, *question.near} <= set(places)
    assert places == Filler(pool, costs_of(pool, words), words).fill(question, 1500, "a")


def test_too_few_or_too_long_documents_are_told(words: TextTokenizer) -> None:
    question = Question("?", ("x",), (0,))
    short = Pool(("one two", "three four"), (question,))
    with pytest.raises(EvalError, match="a context of 8 tokens can be made, expected 98% of 100"):
        Filler(short, costs_of(short, words), words).fill(question, 100, "a")
    long = Pool(("word " * 200, "three four"), (question,))
    with pytest.raises(EvalError, match=r"of 2 documents a context of 20\d tokens"):
        Filler(long, costs_of(long, words), words).fill(question, 100, "a")
