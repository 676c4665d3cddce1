"""The samples of one length: read from a file of MemAgent's, or made from questions and documents."""

from __future__ import annotations

import json
from contextlib import contextmanager
from typing import TYPE_CHECKING

from agentmerge.errors import EvalError, Where, shown
from agentmerge.eval.memory.documents import Pool, drawn, shuffled
from agentmerge.eval.suite import Item

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from pathlib import Path

    from agentmerge.eval.memory.lengths import Filler
    from agentmerge.eval.request import JSON
    from agentmerge.eval.tokenizer import TextTokenizer

READY_FORM = '[{"context": text or [place, ...], "input": question, "answers" or "outputs": [right one, ...]}, ...]'
SQUAD_PROBLEM = "Answer the question based on the given documents. {question}"
"""How MemAgent asks of SQuAD; of HotpotQA it asks the bare question."""
GENERATED = 32
"""Tokens of an answer that RULER counts into a length."""


def ready_items(path: Path, group: str, pool: Pool | None) -> list[Item]:
    """The samples of a file like eval_50.json or eval_qa_1_8192.json, in its order.

    Args:
        path: of the file.
        group: the name of this length.
        pool: of the documents that a context of numbers means; None where there is none.

    Raises:
        EvalError: the file is something else, or its numbers are of documents that are not there.
    """
    with _readable(path):
        return [_ready_item(place, row, group, pool) for place, row in enumerate(json.loads(path.read_bytes()))]


def questions_of(path: Path, pool: Pool) -> list[int]:
    """Which questions of a pool such a file asks, by its "index"; [] where it does not tell, or of other questions."""
    with _readable(path):
        rows = json.loads(path.read_bytes())
        places = [row.get("index", -1) for row in rows]
        if not all(0 <= place < len(pool.questions) for place in places):
            return []
        same = all(pool.questions[place].text == row["input"] for place, row in zip(places, rows, strict=True))
        return places if same else []


def by_count(pool: Pool, group: str, chosen: Sequence[int], count: int, seed: int) -> list[Item]:
    """Samples of a number of documents each, for HotpotQA.

    Args:
        pool: of the documents.
        group: the name of this length.
        chosen: which questions.
        count: documents of each sample.
        seed: of the documents that are drawn.

    Raises:
        EvalError: there are not so many documents.
    """
    if count > len(pool.documents):
        raise EvalError(f"{group}: there are {len(pool.documents):,} documents", todo="Leave this length out.")
    items = []
    for place in chosen:
        question = pool.questions[place]
        documents = shuffled(drawn(pool, question, count, f"{seed} {group} {place}"))
        data = {"problem": question.text.strip(), "answers": list(question.answers), "documents": documents}
        items.append(Item(f"{group}-{place}", group, data))
    return items


def by_tokens(
    pool: Pool, group: str, chosen: Sequence[int], tokens: int, seed: int, filler: Filler, tokenizer: TextTokenizer
) -> list[Item]:
    """Samples of a number of tokens each, for SQuAD: context, question and an answer of 32 tokens together.

    Args:
        pool: of the documents.
        group: the name of this length.
        chosen: which questions.
        tokens: of each sample, from 98 % of it to all.
        seed: of the documents that are drawn.
        filler: chooses them.
        tokenizer: counts.

    Raises:
        EvalError: there are not enough documents.
    """
    items = []
    for place in chosen:
        question = pool.questions[place]
        problem = SQUAD_PROBLEM.format(question=question.text.strip())
        room = tokens - tokenizer.count(problem) - GENERATED
        documents = filler.fill(question, room, f"{seed} {group} {place}")
        data = {"problem": problem, "answers": list(question.answers), "documents": documents}
        items.append(Item(f"{group}-{place}", group, data))
    return items


def _ready_item(place: int, row: JSON, group: str, pool: Pool | None) -> Item:
    answers = row["answers"] if "answers" in row else row["outputs"]
    if not answers:
        raise ValueError(f"sample {place} has no right answer")
    data = {"problem": row["input"].strip(), "answers": list(answers)}
    if isinstance(row["context"], str):
        return Item(f"{group}-{place}", group, {**data, "context": row["context"].strip()})
    if pool is None or max(row["context"]) >= len(pool.documents):
        raise ValueError(f"sample {place} gives its documents by number, and the dev file that it means is not there")
    return Item(f"{group}-{place}", group, {**data, "documents": row["context"]})


@contextmanager
def _readable(path: Path) -> Iterator[None]:
    try:
        yield
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        said = f"{path}: can't be used: {type(error).__name__}: {shown(str(error))}"
        raise EvalError(said, expected=READY_FORM, where=Where(path=str(path))) from None
