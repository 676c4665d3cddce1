"""A question that one of several documents answers, among documents that are like it."""

# ruff: noqa: SIM905

from __future__ import annotations

import random
import re

from tasks.task import RIGHT, Task, Verdict, partly

TOWNS = (
    "Harlow Denby Ashford Milton Kelso Norwood Selby Dunmore Carlow Weston Hadley Marlow Corby Linton Bexley Halden "
    "Stafford Oakham Redmond Fulton Barton Camden Preston Langley Morley Tilbury Upton Wexford Alton Darby"
).split()
PLACES = "Museum Library Theatre School Market Hotel Garden Station Hospital Factory".split()
FIRST = "Anna Paul Nina Mark Laura Simon Julia Peter Clara Victor Helen Oscar Ruth Martin Alice Robert".split()
LAST = "Stone Baker Fisher Green Cooper Mason Parker Turner Wood Hill Carter Brooks Ward Reed Gray Lane".split()
STREETS = "Cedar Maple Bridge Mill Church River Station Market Garden Queen King Castle Forest Spring Hill Park".split()
METALS = "red blue green white black yellow grey brown silver golden purple orange".split()
FACTS = {
    "opened in": ("In which year did {0} open?", "{0} opened in {1}."),
    "director": ("Who is the director of {0}?", "The director of {0} is {1}."),
    "street": ("On which street is {0}?", "The street of {0} is {1}."),
    "door": ("Which colour is the door of {0}?", "The door of {0} is {1}."),
    "visitors": ("How many visitors came to {0}?", "The visitors of {0} were {1}."),
}
SIZES = {"easy": (4, 5), "hard": (9, 10)}  # documents
FACTS_EACH = {"easy": 3, "hard": 4}


def make(rng: random.Random, level: str) -> tuple[str, str]:
    """Easy: a few documents; hard: twice as many with more in them, and half of them of the same town."""
    count = rng.randint(*SIZES[level])
    names = easy_names(rng, count) if level == "easy" else alike_names(rng, count)
    known = {name: facts(rng, FACTS_EACH[level]) for name in names}
    pages = [document(i, name, told) for i, (name, told) in enumerate(known.items(), 1)]
    name = rng.choice(names)
    kind = rng.choice(list(known[name]))
    question = FACTS[kind][0].format(f"the {name}")
    body = "\n\n".join(pages)
    return f"{body}\n\nQuestion: {question}\nReply with the answer only.", known[name][kind]


def easy_names(rng: random.Random, count: int) -> list[str]:
    """Different towns."""
    return [f"{town} {rng.choice(PLACES)}" for town in rng.sample(TOWNS, count)]


def alike_names(rng: random.Random, count: int) -> list[str]:
    """Several places of one town, and one place of several towns."""
    town, *towns = rng.sample(TOWNS, count - 4)
    place, *places = rng.sample(PLACES, 5)
    names = [f"{town} {place}", *(f"{town} {other}" for other in places), *(f"{other} {place}" for other in towns)]
    rng.shuffle(names)
    return names


def facts(rng: random.Random, count: int) -> dict[str, str]:
    """Some facts of a place, in any order."""
    values = {
        "opened in": str(rng.randint(1800, 1999)),
        "director": f"{rng.choice(FIRST)} {rng.choice(LAST)}",
        "street": f"{rng.choice(STREETS)} Street",
        "door": rng.choice(METALS),
        "visitors": str(rng.randint(1000, 9999)),
    }
    return {kind: values[kind] for kind in rng.sample(list(values), count)}


def document(number: int, name: str, told: dict[str, str]) -> str:
    lines = [FACTS[kind][1].format(f"the {name}", value) for kind, value in told.items()]
    return f"Document {number}: {name}\n" + " ".join(line[0].upper() + line[1:] for line in lines)


def judge(text: str, answer: str) -> Verdict:
    """Partial credit: the answer in a longer text 0.4; else the right kind of answer 0.1, words of it 0.2."""
    clean = text.strip().rstrip(".").strip()
    if clean.lower() == answer.lower():
        return RIGHT
    words, wanted = re.findall(r"\w+", clean.lower()), answer.lower().split()
    if re.search(rf"\b{re.escape(answer.lower())}\b", clean.lower()):
        return partly(0.4)
    shared = sum(word in words for word in wanted) / len(wanted)
    kind = len(words) == len(wanted) and answer.isdigit() == clean.isdigit()
    return partly(0.1 * kind + 0.2 * shared)


SEARCH = Task("You answer from documents.", 680, 14, make, judge, str)
