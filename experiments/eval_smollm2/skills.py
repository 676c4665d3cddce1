"""Prompts of three skills with the answers that are right: calls of tools as JSON, a memory of changing values, facts.

The agents are trained on the first two. Facts are what the base can do: nobody is trained on them, so they tell what
training and merging break.
"""

from __future__ import annotations

import json
import random
from collections.abc import Iterator, Mapping
from pathlib import Path

CITIES = [
    "Paris",
    "Rome",
    "Oslo",
    "Cairo",
    "Lima",
    "Tokyo",
    "Delhi",
    "Quito",
    "Berlin",
    "Madrid",
    "Dublin",
    "Vienna",
    "Prague",
    "Athens",
    "Lisbon",
    "Boston",
]
PEOPLE = [
    "Anna",
    "Ben",
    "Carla",
    "Dave",
    "Emma",
    "Felix",
    "Grace",
    "Henry",
    "Iris",
    "Jack",
    "Kate",
    "Leo",
    "Mia",
    "Noah",
    "Olga",
    "Paul",
    "Rosa",
    "Sam",
    "Tina",
    "Uma",
]
GENRES = ["jazz", "rock", "folk", "blues", "soul", "opera", "techno", "disco", "reggae", "metal", "punk", "swing"]
TOOLS = {
    "get_weather": (CITIES, ("How is the weather in {}?", "Will it rain in {} today?", "Do I need a coat in {}?")),
    "call_person": (PEOPLE, ("Call {}, please.", "I want to talk to {}.", "Ring {} for me.")),
    "play_music": (GENRES, ("Play some {}.", "I would like to hear {}.", "Put on {} music.")),
    "set_timer": (range(2, 90), ("Set a timer for {} minutes.", "Wake me in {} minutes.", "Tell me in {} minutes.")),
}  # fmt: skip
COLOURS = ["red", "blue", "green", "black", "white", "pink", "brown", "grey", "gold", "silver"]
CAPITALS = {
    "France": "Paris", "Italy": "Rome", "Norway": "Oslo", "Egypt": "Cairo", "Peru": "Lima", "Japan": "Tokyo",
    "Germany": "Berlin", "Spain": "Madrid", "Ireland": "Dublin", "Austria": "Vienna", "Greece": "Athens",
    "Portugal": "Lisbon", "England": "London", "Russia": "Moscow", "China": "Beijing", "Poland": "Warsaw",
    "Hungary": "Budapest", "Sweden": "Stockholm", "Denmark": "Copenhagen", "Finland": "Helsinki", "Cuba": "Havana",
    "Belgium": "Brussels", "Canada": "Ottawa", "Kenya": "Nairobi", "Thailand": "Bangkok", "Iraq": "Baghdad",
    "Iran": "Tehran", "Argentina": "Buenos Aires", "Chile": "Santiago", "Mexico": "Mexico City",
    "South Korea": "Seoul", "Turkey": "Ankara", "Australia": "Canberra", "Scotland": "Edinburgh",
    "Romania": "Bucharest", "Bulgaria": "Sofia", "Ukraine": "Kyiv", "Vietnam": "Hanoi", "Serbia": "Belgrade",
    "Iceland": "Reykjavik",
}  # fmt: skip
Sample = dict[str, str]


def samples(skill: str, count: int, seed: int, without: frozenset[str] = frozenset()) -> list[Sample]:
    """Distinct prompts of a skill with their answers.

    Args:
        skill: a key of SKILLS.
        count: how many.
        seed: of the choice.
        without: prompts to leave out, as those that somebody else has seen.
    """
    found: dict[str, Sample] = {}
    for sample in SKILLS[skill](random.Random(f"{skill} {seed}")):
        if sample["prompt"] not in without:
            found.setdefault(sample["prompt"], sample)
        if len(found) == count:
            return list(found.values())
    return list(found.values())


def tool(rng: random.Random) -> Iterator[Sample]:
    """A request, to be turned into a call."""
    while True:
        names = rng.sample(sorted(TOOLS), len(TOOLS))
        name = rng.choice(names)
        values, wordings = TOOLS[name]
        value = str(rng.choice(list(values)))
        prompt = f"Tools: {', '.join(names)}.\n{rng.choice(wordings).format(value)}\nAnswer with one call as JSON."
        yield {"prompt": prompt, "answer": json.dumps({"tool": name, "argument": value})}


def memory(rng: random.Random) -> Iterator[Sample]:
    """Values of colours one after the other; the last one of a colour counts."""
    while True:
        names = rng.sample(COLOURS, 3)
        order = [*names, rng.choice(names)]
        told = [(name, rng.randrange(10, 100)) for name in order]
        asked = rng.choice(names)
        text = ", ".join(f"{name} = {value}" for name, value in told)
        yield {
            "prompt": f"{text}.\nWhat is {asked} now? Answer with the number alone.",
            "answer": str(dict(told)[asked]),
        }


def facts(rng: random.Random) -> Iterator[Sample]:
    """Capitals."""
    for country in rng.sample(sorted(CAPITALS), len(CAPITALS)):
        yield {"prompt": f"What is the capital of {country}?", "answer": CAPITALS[country]}


SKILLS = {"tool": tool, "memory": memory, "facts": facts}


def write(path: Path, counts: Mapping[str, int], seed: int, without: frozenset[str]) -> None:
    """JSON lines for the suite `jsonl`, the skill as the group of each."""
    lines = [
        {"id": f"{skill} {number}", "group": skill, **sample}
        for skill, count in counts.items()
        for number, sample in enumerate(samples(skill, count, seed, without))
    ]
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
