"""Short answers compared with right ones, as SQuAD's script and those after it normalise them."""

from __future__ import annotations

import re
import string

ARTICLES = re.compile(r"\b(a|an|the)\b")
PUNCTUATION = str.maketrans("", "", string.punctuation)


def normalized(text: str) -> str:
    """In lower case, without ASCII punctuation, then without articles, with single spaces.

    Reference:
        Rajpurkar et al., "SQuAD: 100,000+ Questions for Machine Comprehension of Text", EMNLP 2016, evaluation script.
    """
    return " ".join(ARTICLES.sub(" ", text.lower().translate(PUNCTUATION)).split())


def equal(answer: str, right: str) -> bool:
    """Whether both are the same and something, normalised: exact match."""
    return normalized(answer) == normalized(right) != ""


def holds_words(answer: str, right: str) -> bool:
    """Whether the words of `right` stand in `answer` one after the other, normalised; "no" is not in "unknown"."""
    words = normalized(right)
    return words != "" and f" {words} " in f" {normalized(answer)} "
