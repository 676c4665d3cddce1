"""Instructions whose constraints a program verifies."""

# ruff: noqa: SIM905

from __future__ import annotations

import json
import random
import re
from dataclasses import dataclass

from tasks.task import RIGHT, Task, Verdict, partly

WORDS = (
    "river stone cloud tiger piano garden window silver bottle candle pepper rocket apple bread chair table house "
    "water light music green black white paper glass horse sheep snake train plane beach field north south night day "
    "king queen bird fish tree leaf sand rain snow wind fire gold iron milk salt sugar"
).split()
CASES = {"upper": "Use only capital letters.", "lower": "Use only small letters.", "title": "Capitalise every word."}
WRAPS = {
    "plain": "",
    "quotes": "Put the whole answer in double quotes.",
    "brackets": "Put the whole answer in square brackets.",
    "json": 'Reply with a JSON object in the form {"words": "..."}.',
}
JOINS = {
    "spaces": ("Separate them by spaces.", " "),
    "commas": ("Separate them by commas.", ", "),
    "bullets": ('Write each on its own line after "- ".', "\n"),
}


@dataclass(frozen=True)
class Rules:
    """What an answer must keep: how many words, their case, how they are joined and wrapped, the first and last."""

    count: int
    case: str
    join: str
    wrap: str = "plain"
    first: str = ""
    last: str = ""
    example: tuple[str, ...] = ()
    """Words that a right answer may have."""


def make(rng: random.Random, level: str) -> tuple[str, Rules]:
    """Easy: words, case and one more rule; hard: all of them."""
    easy = level == "easy"
    words = rng.sample(WORDS, rng.randint(2, 4) if easy else rng.randint(3, 6))
    join, wrap = rng.choice(list(JOINS)), rng.choice(["quotes", "brackets", "json"])
    if join == "bullets" or (easy and rng.random() < 0.5):
        wrap = "plain"
    elif easy:
        join = "spaces"
    first = "" if easy else words[0]
    last = "" if easy or rng.random() < 0.5 else words[-1]
    rules = Rules(len(words), rng.choice(list(CASES)), join, wrap, first, last, tuple(words))
    return asked(rules, rng.choice(WORDS)), rules


def asked(rules: Rules, topic: str) -> str:
    lines = [f"Write exactly {rules.count} different words about {topic}.", JOINS[rules.join][0], CASES[rules.case]]
    lines += [f"The first word is {rules.first}."] if rules.first else []
    lines += [f"The last word is {rules.last}."] if rules.last else []
    lines += [WRAPS[rules.wrap]] if rules.wrap != "plain" else []
    return " ".join(lines) + " Write nothing else."


def spell(rules: Rules) -> str:
    """The example in the form that the rules ask for."""
    words = [cased(word, rules.case) for word in rules.example]
    if rules.join == "bullets":
        return "\n".join(f"- {word}" for word in words)
    text = JOINS[rules.join][1].join(words)
    return {
        "plain": text,
        "quotes": f'"{text}"',
        "brackets": f"[{text}]",
        "json": json.dumps({"words": text}),
    }[rules.wrap]


def cased(word: str, case: str) -> str:
    return {"upper": word.upper(), "lower": word.lower(), "title": word.capitalize()}[case]


def judge(text: str, rules: Rules) -> Verdict:
    """Partial credit: half of the share of rules that are kept; a text without words gets none."""
    inner, wrapped = unwrapped(text.strip(), rules.wrap)
    words, joined = split_words(inner, rules.join)
    plain = [word.lower() for word in words]
    if not words:
        return partly(0.0)
    kept = [
        wrapped,
        joined,
        len(words) == rules.count,
        len(set(plain)) == len(plain),
        all(word == cased(word, rules.case) for word in words),
    ]
    kept += [plain[0] == rules.first] if rules.first else []
    kept += [plain[-1] == rules.last] if rules.last else []
    return RIGHT if all(kept) else partly(0.5 * sum(kept) / len(kept))


def unwrapped(text: str, wrap: str) -> tuple[str, bool]:
    """What is inside, and whether the wrap is as it should be."""
    if wrap == "json":
        try:
            found = json.loads(text)
        except (ValueError, RecursionError):
            return text, False
        right = isinstance(found, dict) and set(found) == {"words"} and isinstance(found["words"], str)
        return (found["words"], True) if right else (text, False)
    left, right = {"plain": ("", ""), "quotes": '""', "brackets": "[]"}[wrap]
    if len(text) < len(left + right) or not (text.startswith(left) and text.endswith(right)):
        return text, False
    return text[len(left) : len(text) - len(right)], True


def split_words(text: str, join: str) -> tuple[list[str], bool]:
    """All words, and whether they stand as they should: letters and the separator, nothing else."""
    word = "[A-Za-z]+"
    form = {"spaces": f"{word}( {word})*", "commas": f"{word}(, ?{word})*", "bullets": rf"- {word}(\n- {word})*"}
    return re.findall(word, text), re.fullmatch(form[join], text) is not None


FORMAT = Task("You follow instructions about form.", 88, 40, make, judge, spell)
