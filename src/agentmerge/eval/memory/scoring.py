"""What an answer about a long context is worth: sub-EM as MemAgent counts it, and as its name says."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Literal

from agentmerge.eval.short_answers import equal, holds_words, normalized

if TYPE_CHECKING:
    from collections.abc import Sequence

Ending = Literal["sentence", "boxed"]
"""How the model was asked to give its answer: "the answer is ..." or \\boxed{...}."""
SENTENCE = "the answer is"
_END_MARKS = re.compile("<\uff5cAssistant\uff5c>|<\uff5cend\u2581of\u2581sentence\uff5c>")
"""DeepSeek's."""


def after_thinking(text: str) -> str:
    """What follows the last </think>; all of it where there is none."""
    return text.rsplit("</think>", 1)[1].strip() if "</think>" in text else text


def answer_of(response: str, ending: Ending, *, any_case: bool) -> str:
    """The answer that a response gives; "" where it gives none.

    Args:
        response: the model's last one.
        ending: how it was asked to answer.
        any_case: whether "The answer is" counts as "the answer is" does; to MemAgent it does not.

    Reference:
        MemAgent, taskutils/memory_eval/utils/__init__.py, `extract_answer` and `extract_boxed_answer`.
    """
    stripped = response.strip()
    text = after_thinking(stripped) or stripped
    return boxed(text) if ending == "boxed" else _after_sentence(text.replace("*", ""), any_case)


def boxed(text: str) -> str:
    r"""What the last \boxed holds: to the brace that closes it, or after "\boxed " to the next $."""
    if "\\boxed " in text:
        return text.rsplit("\\boxed ", 1)[1].split("$")[0]
    start = text.rfind("\\boxed{")
    depth = 0
    for place in range(start + len("\\boxed"), len(text)) if start >= 0 else ():
        depth += {"{": 1, "}": -1}.get(text[place], 0)
        if not depth:
            return text[start + len("\\boxed{") : place]
    return ""


def sub_em_memagent(response: str, answers: Sequence[str], ending: Ending) -> float | None:
    """Whether the first right answer is in the given one or the given one in it, as characters; None is not counted.

    Kept as it is: an answer that normalises to nothing ("the") is in every right one, "a" is in "Barack", "no" in
    "unknown", other right answers than the first don't count, "The answer is" is no answer, and an empty response
    (there: a request that failed) leaves the denominator.

    Args:
        response: the model's last one.
        answers: right ones; the first is looked at.
        ending: how the model was asked to answer.

    Reference:
        MemAgent, taskutils/memory_eval, `get_pred` and `sub_exact_match_score`.
    """
    if response == "":
        return None
    given = answer_of(response, ending, any_case=False)
    if not given:
        return 0.0
    given, right = normalized(given), normalized(answers[0])
    return float(right in given or given in right)


def sub_em_strict(response: str, answers: Sequence[str], ending: Ending) -> float:
    """Whether the words of any right answer stand in the given one; an empty response is wrong."""
    given = answer_of(response, ending, any_case=True)
    return float(any(holds_words(given, right) for right in answers))


def exact_match(response: str, answers: Sequence[str], ending: Ending) -> float:
    """Whether the given answer is any right one, normalised."""
    given = answer_of(response, ending, any_case=True)
    return float(any(equal(given, right) for right in answers))


def _after_sentence(text: str, any_case: bool) -> str:
    _, *after = re.split(SENTENCE, text, flags=re.IGNORECASE if any_case else 0)
    return _END_MARKS.sub("", after[-1].strip()).strip().strip(".").strip() if after else ""
