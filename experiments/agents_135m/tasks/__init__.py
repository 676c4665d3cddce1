"""Seven domains with two levels each: prompts, right answers, rewards with partial credit, exact scores."""

from __future__ import annotations

import hashlib
import random
from typing import NamedTuple

from tasks.code import CODE
from tasks.format import FORMAT
from tasks.math import MATH
from tasks.memory import MEMORY
from tasks.search import SEARCH
from tasks.sort import SORT
from tasks.task import Answer, Task, Verdict
from tasks.tool import TOOL

__all__ = ["DOMAINS", "LEVELS", "SPLITS", "SUB_TASKS", "Answer", "Sample", "Task", "Verdict", "draw", "levels_of"]

DOMAINS: dict[str, Task] = {
    "tool": TOOL,
    "memory": MEMORY,
    "math": MATH,
    "code": CODE,
    "sort": SORT,
    "search": SEARCH,
    "format": FORMAT,
}
LEVELS = ("easy", "hard")
SUB_TASKS = [f"{domain}/{level}" for domain in DOMAINS for level in LEVELS]
SPLITS = {"train": 6, "dev": 4, "test": 4, "check": 2}
"""Sixteenths of all prompts: a prompt belongs to one split, by its hash. `check` is for decisions while training."""


class Sample(NamedTuple):
    """A prompt as the model reads it, and what its answer is judged by."""

    prompt: str
    answer: Answer


def draw(domain: str, level: str, split: str, key: str) -> Sample:
    """The sample of this key: the first draw whose prompt belongs to the split."""
    task, rng = DOMAINS[domain], random.Random(f"{domain}/{level}/{split}/{key}")
    while True:
        question, answer = task.make(rng, level)
        if split_of(question) == split:
            return Sample(chat(task.system, question), answer)


def split_of(question: str) -> str:
    """By a hash of the text, in the proportions of SPLITS."""
    place = hashlib.blake2b(question.encode(), digest_size=4).digest()[0] % 16
    for split, share in SPLITS.items():
        place -= share
        if place < 0:
            return split
    raise AssertionError("SPLITS are sixteen sixteenths")


def chat(system: str, question: str) -> str:
    return f"<|im_start|>system\n{system}<|im_end|>\n<|im_start|>user\n{question}<|im_end|>\n<|im_start|>assistant\n"


def levels_of(domain: str) -> list[str]:
    """Names of its sub-tasks."""
    return [f"{domain}/{level}" for level in LEVELS]
