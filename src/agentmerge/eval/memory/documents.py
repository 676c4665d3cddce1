"""Questions with the documents that answer them, and the many others that make a context long: HotpotQA and SQuAD."""

from __future__ import annotations

import json
import random
from dataclasses import dataclass
from typing import TYPE_CHECKING

from agentmerge.errors import EvalError, Where, shown

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence
    from pathlib import Path

    from agentmerge.eval.request import JSON

HOTPOTQA_FORM = '[{"question": ..., "answer": ..., "context": [[title, [sentence, ...]], ...]}, ...]'
SQUAD_FORM = (
    '{"data": [{"paragraphs": [{"context": ..., "qas": [{"question": ..., "is_impossible": false, '
    '"answers": [{"text": ...}]}]}]}]}'
)
SHUFFLE = 4
"""The seed by which MemAgent puts the documents of every sample into order."""


@dataclass(frozen=True, slots=True)
class Question:
    """One question over a pool of documents."""

    text: str
    answers: tuple[str, ...]
    own: tuple[int, ...]
    """Documents that came with it, the answering ones among them; they are in every sample."""
    near: tuple[int, ...] = ()
    """Documents of the same article, taken before any others."""


@dataclass(frozen=True)
class Pool:
    """All documents, sorted and each one once, and the questions over them."""

    documents: tuple[str, ...]
    questions: tuple[Question, ...]


def read_hotpotqa(path: Path) -> Pool:
    """HotpotQA in its own layout, as in hotpot_dev_distractor_v1.json: a document is a title and its sentences.

    Raises:
        EvalError: it can't be read, or is something else.
    """
    rows = _json(path, HOTPOTQA_FORM)
    try:
        texts = [[f"{title}\n{''.join(sentences)}" for title, sentences in row["context"]] for row in rows]
        documents, place = _numbered(text for own in texts for text in own)
        questions = (
            Question(row["question"], (row["answer"],), tuple(place[text] for text in own))
            for row, own in zip(rows, texts, strict=True)
        )
        return Pool(documents, tuple(questions))
    except (KeyError, TypeError, ValueError) as error:
        raise _not_of_form(path, error, HOTPOTQA_FORM) from None


def read_squad(path: Path) -> Pool:
    """SQuAD 2.0 in its own layout, as in dev-v2.0.json, without what can't be answered: a document is a paragraph.

    Raises:
        EvalError: it can't be read, or is something else.
    """
    data = _json(path, SQUAD_FORM)
    try:
        articles = [article["paragraphs"] for article in data["data"]]
        documents, place = _numbered(paragraph["context"] for article in articles for paragraph in article)
        return Pool(documents, tuple(question for article in articles for question in _of_article(article, place)))
    except (KeyError, TypeError) as error:
        raise _not_of_form(path, error, SQUAD_FORM) from None


def drawn(pool: Pool, question: Question, count: int, seed: str) -> list[int]:
    """Documents for one sample: the question's own, those of its article, and any others up to `count`.

    Args:
        pool: of the documents.
        question: whose sample it is.
        count: documents in all, at most as many as the pool has.
        seed: names the draw; another one draws others.

    Returns:
        Places in the pool, in the order that `shuffled` starts from.
    """
    rng = random.Random(seed)
    near = list(question.near)
    if count - len(question.own) <= len(near):
        return [*question.own, *rng.sample(near, max(0, count - len(question.own)))]
    first = [*question.own, *near]
    taken = set(first)
    others = rng.sample(range(len(pool.documents)), min(count + len(first), len(pool.documents)))
    return [*first, *(place for place in others if place not in taken)][:count]


def shuffled(places: Sequence[int]) -> list[int]:
    """The order that documents stand in, always by the same seed."""
    order = list(places)
    random.Random(SHUFFLE).shuffle(order)
    return order


def context_of(documents: Iterable[str]) -> str:
    """Documents as one text, each with its number from 1 on."""
    return "\n\n".join(f"Document {number}:\n{document}" for number, document in enumerate(documents, 1))


def _of_article(paragraphs: JSON, place: dict[str, int]) -> Iterator[Question]:
    all_places = [place[paragraph["context"]] for paragraph in paragraphs]
    for paragraph in paragraphs:
        own = place[paragraph["context"]]
        near = tuple(dict.fromkeys(other for other in all_places if other != own))
        for asked in paragraph["qas"]:
            if not asked["is_impossible"]:
                answers = tuple(answer["text"] for answer in asked["answers"])
                yield Question(asked["question"], answers, (own,), near)


def _numbered(texts: Iterable[str]) -> tuple[tuple[str, ...], dict[str, int]]:
    documents = tuple(sorted(set(texts)))
    return documents, {document: place for place, document in enumerate(documents)}


def _json(path: Path, form: str) -> JSON:
    try:
        return json.loads(path.read_bytes())
    except (OSError, ValueError) as error:
        raise _not_of_form(path, error, form) from None


def _not_of_form(path: Path, error: Exception, form: str) -> EvalError:
    said = f"{type(error).__name__}: {error}" if isinstance(error, OSError | ValueError) else f"no {shown(str(error))}"
    return EvalError(f"{path}: can't be used: {said}", expected=form, where=Where(path=str(path)))
