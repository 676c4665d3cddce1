"""Tool: signatures of functions and a wish, answered by a call in JSON. Knows no models.

zut(ab,cd) bok(ef,gh)
bok 12 34              ->      {"fn":"bok","ef":12,"gh":34}
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

from agentmerge.demo.domains.sample import Domain, Level, Sample, Split

if TYPE_CHECKING:
    import random

CONSONANTS, VOWELS = "bdfgklmnprstvz", "aeiou"
SHAPES = {"easy": (2, 1), "hard": (3, 2)}
"""Functions in the prompt and arguments of each, by level."""


def make(rng: random.Random, level: Level, split: Split) -> Sample:
    """Distinct invented names, numbers below 100."""
    functions, arguments = SHAPES[level]
    names = _distinct(rng, functions, lambda: rng.choice(CONSONANTS) + rng.choice(VOWELS) + rng.choice(CONSONANTS))
    keys = _distinct(rng, functions * arguments, lambda: rng.choice(CONSONANTS) + rng.choice(VOWELS))
    signatures = [keys[i * arguments : (i + 1) * arguments] for i in range(functions)]
    wanted = rng.randrange(functions)
    values = [rng.randrange(100) for _ in range(arguments)]
    head = " ".join(f"{name}({','.join(own)})" for name, own in zip(names, signatures, strict=True))
    call = {"fn": names[wanted], **dict(zip(signatures[wanted], values, strict=True))}
    return Sample(f"{head}\n{' '.join([names[wanted], *map(str, values)])}\n", json.dumps(call, separators=(",", ":")))


def reward(sample: Sample, answer: str) -> float:
    """1 for the same call; else 0.1 for JSON and up to 0.3 for its right parts."""
    given, wanted = _parsed(answer), json.loads(sample.answer)
    if not isinstance(given, dict):
        return 0.0
    if given == wanted:
        return 1.0
    right = sum(key in given and given[key] == value for key, value in wanted.items())
    return 0.1 + 0.3 * right / max(len(wanted), len(given))


def _parsed(answer: str) -> Any:
    """The JSON value; None where it is none, or names a key twice."""

    def once(pairs: list[tuple[str, Any]]) -> dict[str, Any] | None:
        return dict(pairs) if len({key for key, _ in pairs}) == len(pairs) else None

    try:
        return json.loads(answer, object_pairs_hook=once)
    except (ValueError, RecursionError):
        return None


def _distinct(rng: random.Random, count: int, draw: Any) -> list[str]:
    found: list[str] = []
    while len(found) < count:
        word = draw()
        if word not in found:
            found.append(word)
    return found


TOOL = Domain("tool", make, reward)
