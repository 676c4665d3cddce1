"""Code: a short spec of a list program, answered by the program, which is run to score it.

plus 13 then flip       ->      x.add(13).rev()
plus 13 after flip      ->      x.rev().add(13)
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from agentmerge.eval.samples import Sample
from agentmerge.eval.tiny.domains.domain import Domain
from agentmerge.eval.tiny.domains.interpreter import ProgramError, run

if TYPE_CHECKING:
    import random

    from agentmerge.eval.samples import Split
    from agentmerge.eval.tiny.domains.domain import Level

WORDS = {
    "flip": ("rev", 0, 0), "order": ("sort", 0, 0), "first": ("take", 2, 8), "skip": ("drop", 1, 5),
    "plus": ("add", 1, 99), "times": ("mul", 2, 99), "over": ("gt", 10, 60), "under": ("lt", 40, 99),
}  # fmt: skip
"""Word of the spec to word of the program, with the least and the greatest number; 0 and 0 for none."""
STEPS = {"easy": 2, "hard": 3}
INPUTS = (
    [31, 4, 85, 72, 9, 60, 53, 17, 98, 26],
    [5, 77, 42, 93, 18, 64, 39, 50, 81, 12],
    [66, 23, 97, 8, 45, 71, 34, 88, 15, 59],
)
"""What programs are run on."""


def make(rng: random.Random, level: Level, split: Split) -> Sample:
    """Steps joined by `then`, or by `after`, which runs the later one first."""
    while True:
        chosen = [_step(rng) for _ in range(STEPS[level])]
        after = rng.random() < 0.5
        spec = (" after " if after else " then ").join(words for words, _ in chosen)
        steps = [code for _, code in chosen]
        program = "x" + "".join(reversed(steps) if after else steps)
        if all(run(program, numbers) for numbers in INPUTS):
            return Sample(f"{spec}\n", program)


def reward(sample: Sample, answer: str) -> float:
    """1 if the program does what the right one does on every input; else 0.1 if it runs, 0.3 if a step is right."""
    try:
        results = [run(answer, list(numbers)) for numbers in INPUTS]
    except ProgramError:
        return 0.0
    if results == [run(sample.answer, list(numbers)) for numbers in INPUTS]:
        return 1.0
    given, wanted = answer.split(".")[1:], sample.answer.split(".")[1:]
    return 0.1 + 0.3 * sum(a == b for a, b in zip(given, wanted, strict=False)) / max(len(wanted), len(given))


def _step(rng: random.Random) -> tuple[str, str]:
    word = rng.choice(sorted(WORDS))
    name, least, most = WORDS[word]
    number = str(rng.randint(least, most)) if most else ""
    return f"{word} {number}".strip(), f".{name}({number})"


CODE = Domain("code", make, reward)
