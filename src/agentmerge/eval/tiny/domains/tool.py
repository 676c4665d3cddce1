"""Tool: signatures of functions and a wish, answered by a call in JSON.

zu(a) bo(e)
bo 12                  ->      {"bo":{"e":12}}
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

from agentmerge.eval.samples import Sample
from agentmerge.eval.tiny.domains.domain import Domain

if TYPE_CHECKING:
    import random

    from agentmerge.eval.samples import Split
    from agentmerge.eval.tiny.domains.domain import Level

CONSONANTS, VOWELS, LETTERS = "bdfgklmnprstvz", "aeiou", "abcdefghijklmnopqrstuvwxyz"
SHAPES = {"easy": (1, 2), "hard": (2, 1)}
"""Functions in the prompt and arguments of each, by level."""


def make(rng: random.Random, level: Level, split: Split) -> Sample:
    """Invented names with distinct beginnings, arguments of one letter, numbers below 100."""
    functions, arguments = SHAPES[level]
    names = [first + rng.choice(VOWELS) for first in rng.sample(CONSONANTS, functions)]
    keys = rng.sample(LETTERS, functions * arguments)
    signatures = [keys[i * arguments : (i + 1) * arguments] for i in range(functions)]
    wanted = rng.randrange(functions)
    values = [rng.randrange(100) for _ in range(arguments)]
    head = " ".join(f"{name}({','.join(own)})" for name, own in zip(names, signatures, strict=True))
    call = {names[wanted]: dict(zip(signatures[wanted], values, strict=True))}
    return Sample(f"{head}\n{' '.join([names[wanted], *map(str, values)])}\n", json.dumps(call, separators=(",", ":")))


def reward(sample: Sample, answer: str) -> float:
    """1 for the same call; else 0.1 for JSON, 0.1 for the function and up to 0.2 for its right arguments."""
    given, wanted = _parsed(answer), json.loads(sample.answer)
    if json.dumps(given, sort_keys=True) == json.dumps(wanted, sort_keys=True):
        return 1.0
    if not isinstance(given, dict) or len(given) != 1:
        return 0.0
    name, values = next(iter(wanted.items()))
    arguments = given.get(name)
    if not isinstance(arguments, dict):
        return 0.1
    right = sum(key in arguments and arguments[key] == value for key, value in values.items())
    return 0.2 + 0.2 * float(right) / max(len(values), len(arguments))


def _parsed(answer: str) -> Any:
    """The JSON value; None where it is none, or names a key twice."""

    def once(pairs: list[tuple[str, Any]]) -> dict[str, Any] | None:
        return dict(pairs) if len({key for key, _ in pairs}) == len(pairs) else None

    try:
        return json.loads(answer, object_pairs_hook=once)
    except (ValueError, RecursionError):
        return None


TOOL = Domain("tool", make, reward)
