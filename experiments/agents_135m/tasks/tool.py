"""A call of the right function with the right arguments, in JSON."""

# ruff: noqa: SIM905

from __future__ import annotations

import json
import random
from collections.abc import Callable
from typing import Any, NamedTuple

from tasks.task import RIGHT, Task, Verdict, partly

CITIES = (
    "Paris London Tokyo Berlin Madrid Rome Oslo Cairo Lima Delhi "
    "Boston Dublin Vienna Prague Athens Seoul Sydney Toronto Chicago Denver"
).split()
PEOPLE = (
    "Alice Bob Carol David Emma Frank Grace Henry Irene Jack Karen Liam Maria Noah Olivia Peter Quinn Rosa Sam Tina"
).split()
ITEMS = "milk bread apples rice eggs coffee tea sugar butter cheese pasta honey beans carrots onions lemons".split()
DAYS = "Monday Tuesday Wednesday Thursday Friday Saturday Sunday".split()
SONGS = "Yesterday Imagine Thriller Hello Halo Umbrella Perfect Believer Fireworks Roar".split()
ROOMS = "kitchen bedroom office garage bathroom hallway basement attic".split()
LANGUAGES = "French German Spanish Italian Korean Arabic Hindi Greek Polish Dutch".split()
WORDS = "river stone cloud tiger piano garden window silver bottle candle pepper rocket".split()
PAPERS = "report budget slides review survey draft".split()
Values = Callable[[random.Random], Any]


def of(words: list[str]) -> Values:
    return lambda rng: rng.choice(words)


def between(least: int, most: int) -> Values:
    return lambda rng: rng.randint(least, most)


class Function(NamedTuple):
    """What can be called: name, parameters with their values, requests that ask for it."""

    name: str
    parameters: dict[str, Values]
    requests: tuple[str, ...]


FUNCTIONS = [
    Function(
        "get_weather",
        {"city": of(CITIES), "day": of(DAYS)},
        ("What is the weather in {0} on {1}?", "Tell me the {1} forecast for {0}."),
    ),
    Function(
        "book_flight",
        {"origin": of(CITIES[:10]), "destination": of(CITIES[10:])},
        ("Book a flight from {0} to {1}.", "I need to fly to {1} from {0}."),
    ),
    Function(
        "send_message",
        {"to": of(PEOPLE), "day": of(DAYS)},
        ("Send a message to {0} on {1}.", "On {1}, please message {0}."),
    ),
    Function(
        "buy_item",
        {"item": of(ITEMS), "count": between(2, 20)},
        ("Buy {1} {0}.", "Please order {0}, {1} of them."),
    ),
    Function(
        "play_song",
        {"song": of(SONGS), "room": of(ROOMS)},
        ("Play {0} in the {1}.", "In the {1}, put on {0}."),
    ),
    Function(
        "set_temperature",
        {"room": of(ROOMS), "degrees": between(15, 28)},
        ("Set the {0} to {1} degrees.", "Make it {1} degrees in the {0}."),
    ),
    Function(
        "translate_word",
        {"word": of(WORDS), "language": of(LANGUAGES)},
        ("Translate {0} to {1}.", "How do you say {0} in {1}?"),
    ),
    Function(
        "set_alarm",
        {"hour": between(1, 23), "day": of(DAYS)},
        ("Set an alarm for {0} on {1}.", "Wake me at {0} on {1}."),
    ),
    Function(
        "call_contact",
        {"name": of(PEOPLE), "minutes": between(5, 59)},
        ("Call {0} in {1} minutes.", "In {1} minutes, phone {0}."),
    ),
    Function(
        "reserve_table",
        {"city": of(CITIES), "people": between(2, 12), "day": of(DAYS)},
        ("Reserve a table in {0} for {1} people on {2}.", "We are {1} people, get a table on {2} in {0}."),
    ),
    Function(
        "rent_car",
        {"city": of(CITIES), "days": between(2, 30), "driver": of(PEOPLE)},
        ("Rent a car in {0} for {1} days, driver {2}.", "{2} wants a car for {1} days in {0}."),
    ),
    Function(
        "assign_task",
        {"task": of(PAPERS), "person": of(PEOPLE), "day": of(DAYS)},
        ("Assign the {0} to {1} for {2}.", "{1} should do the {0} by {2}."),
    ),
]
SHORT, LONG = FUNCTIONS[:9], FUNCTIONS[9:]
FORM = '{"name": "add_note", "arguments": {"title": "gym", "hours": 3}}'


def make(rng: random.Random, level: str) -> tuple[str, dict[str, Any]]:
    """Easy: one function of two parameters; hard: three to choose from, half of the time three parameters."""
    offered = rng.sample(SHORT, 1) if level == "easy" else rng.sample(FUNCTIONS, 3)
    wanted = rng.choice(offered)
    if level == "hard" and rng.random() < 0.5:
        wanted = rng.choice(LONG)
        if wanted not in offered:
            offered[rng.randrange(3)] = wanted
    values = {name: draw(rng) for name, draw in wanted.parameters.items()}
    request = rng.choice(wanted.requests).format(*values.values())
    signatures = "\n".join(f"{function.name}({', '.join(function.parameters)})" for function in offered)
    question = f"Functions:\n{signatures}\nRequest: {request}\nReply with one JSON object only, in the form {FORM}"
    return question, {"name": wanted.name, "arguments": values}


def judge(text: str, answer: dict[str, Any]) -> Verdict:
    """Partial credit: JSON 0.1, the name 0.2, 0.3 for arguments."""
    call, alone = read_object(text.strip())
    if call is None:
        return partly(0.02 if text.strip().startswith("{") else 0.0)
    given = call.get("arguments")
    given = given if isinstance(given, dict) else {}
    wanted = answer["arguments"]
    right = sum(same(given.get(name), value) for name, value in wanted.items())
    named = call.get("name") == answer["name"]
    if alone and named and right == len(wanted) == len(given) and set(call) == {"name", "arguments"}:
        return RIGHT
    return partly((0.1 if alone else 0.05) + 0.2 * named + 0.3 * right / len(wanted))


def read_object(text: str) -> tuple[dict[str, Any] | None, bool]:
    """The object at the beginning, and whether nothing follows it."""
    if not text.startswith("{"):
        return None, False
    try:
        found, stop = json.JSONDecoder().raw_decode(text)
    except (ValueError, RecursionError):
        return None, False
    return found, stop == len(text)


def same(given: Any, wanted: Any) -> bool:
    return given is not None and str(given).lower() == str(wanted).lower()


TOOL = Task("You call functions.", 112, 48, make, judge, json.dumps)
