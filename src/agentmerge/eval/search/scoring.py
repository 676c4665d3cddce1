"""What a short answer is worth: exact match, and what ZeroSearch calls so."""

from __future__ import annotations

from typing import TYPE_CHECKING

from agentmerge.eval.short_answers import equal, normalized

if TYPE_CHECKING:
    from collections.abc import Sequence


def em_zerosearch(answer: str | None, right: Sequence[str]) -> float:
    """Whether any right answer stands in the given one, as characters, normalised.

    ZeroSearch's reward of the name EM. It scans prompt and response together, so that a response without an answer
    gets the prompt's example, Beijing, for one; here it has none and is wrong.

    Reference:
        ZeroSearch, verl/utils/reward_score/qa_em.py, `em_check`.
    """
    return 0.0 if answer is None else float(any(normalized(gold) in normalized(answer) for gold in right))


def exact_match(answer: str | None, right: Sequence[str]) -> float:
    """Whether the given answer is any right one, normalised."""
    return 0.0 if answer is None else float(any(equal(answer, gold) for gold in right))
