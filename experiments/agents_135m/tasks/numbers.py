"""Verdicts on answers that are one number or several."""

from __future__ import annotations

import re

from tasks.task import RIGHT, Verdict, partly


def judge_number(text: str, answer: int) -> Verdict:
    """Right: the number, full stop or not. Partial credit: some number alone, or the right one at the end."""
    text = text.strip()
    if re.fullmatch(r"-?\d+\.?", text):
        return RIGHT if text.rstrip(".") == str(answer) else partly(0.1)
    found = re.findall(r"\d+", text)
    return partly(0.4 if found and found[-1] == str(answer) else 0.0)


def in_place(text: str, answer: list[str]) -> float:
    """Share of the numbers that stand where they should."""
    found = re.findall(r"\d+", text)
    return sum(a == b for a, b in zip(found, answer, strict=False)) / len(answer)


def right_form(words: list[str], answer: list[str]) -> bool:
    """So many numbers and nothing else."""
    return len(words) == len(answer) and all(word.isdigit() for word in words)
