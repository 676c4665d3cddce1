"""What methods tell while they merge reaches the survey, and nobody else."""

from __future__ import annotations

import json
from threading import Thread

from agentmerge.survey.reported import FactsOf, Reported, collecting, report


def test_facts_are_told_to_whoever_collects_and_else_to_nobody() -> None:
    report("rank", "nobody listens", 1)
    with collecting() as outer:
        report("rank", "a", 3)
        with collecting() as inner:
            report("rank", "b", 4)
        report("tied", "a", 1)
    assert outer == {"rank": {"a": 3.0}, "tied": {"a": 1.0}}
    assert inner == {"rank": {"b": 4.0}}


def test_another_thread_tells_its_own() -> None:
    with collecting() as mine:
        thread = Thread(target=report, args=("rank", "elsewhere", 1))
        thread.start()
        thread.join()
    assert mine == {}


def test_answers_add_up_in_any_order_and_travel_as_json() -> None:
    kind, parts = FactsOf(), [{"rank": {"b": 1.5}}, {"rank": {"a": 0.1}, "tied": {"c": 2.0}}, {}]
    forwards = kind.combine(kind.combine(parts[0], parts[1]), parts[2])
    backwards = kind.combine(parts[2], kind.combine(parts[1], parts[0]))
    assert json.dumps(forwards) == json.dumps(backwards)
    assert forwards == {"rank": {"a": 0.1, "b": 1.5}, "tied": {"c": 2.0}}
    assert kind.decode(json.loads(json.dumps(kind.encode(forwards)))) == forwards
    assert Reported().key == "Reported {}"
