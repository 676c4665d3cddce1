"""Math: `4+7-5+8`, answered by the number."""

from __future__ import annotations

from typing import TYPE_CHECKING

from agentmerge.eval.samples import Sample
from agentmerge.eval.tiny.domains.domain import Domain, matching

if TYPE_CHECKING:
    import random

    from agentmerge.eval.samples import Split
    from agentmerge.eval.tiny.domains.domain import Level

TERMS = {"easy": 4, "hard": 5}


def make(rng: random.Random, level: Level, split: Split) -> Sample:
    """Terms of one digit, added and subtracted."""
    first, *rest = (rng.randrange(10) for _ in range(TERMS[level]))
    terms = [first, *(rng.choice((-1, 1)) * term for term in rest)]
    words = [str(first), *(f"{'-' if term < 0 else '+'}{abs(term)}" for term in terms[1:])]
    return Sample("".join(words) + "\n", str(sum(terms)))


def reward(sample: Sample, answer: str) -> float:
    """1 for the number, up to 0.3 for its right digits."""
    if answer == sample.answer:
        return 1.0
    return 0.3 * matching(answer, sample.answer)


MATH = Domain("math", make, reward)
