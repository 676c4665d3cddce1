"""Math: `417-58` or `52+17-38`, answered by the number. Knows no models."""

from __future__ import annotations

from typing import TYPE_CHECKING

from agentmerge.demo.domains.sample import Domain, Level, Sample, Split, matching

if TYPE_CHECKING:
    import random


def make(rng: random.Random, level: Level, split: Split) -> Sample:
    """Two numbers of up to three digits, or three of two digits; the result is never negative."""
    if level == "easy":
        first, second = sorted((rng.randrange(10, 1000), rng.randrange(10, 1000)), reverse=True)
        terms = [first, rng.choice((-1, 1)) * second]
    else:
        terms = [rng.randrange(50, 100), rng.choice((-1, 1)) * rng.randrange(10, 50)]
        total = sum(terms)
        last = rng.randrange(10, 100)
        terms.append(-last if last <= total and rng.random() < 0.5 else last)
    prompt = str(terms[0]) + "".join(f"{term:+d}" for term in terms[1:])
    return Sample(f"{prompt}\n", str(sum(terms)))


def reward(sample: Sample, answer: str) -> float:
    """1 for the number, up to 0.3 for its right digits."""
    if answer == sample.answer:
        return 1.0
    return 0.3 * matching(answer, sample.answer)


MATH = Domain("math", make, reward)
