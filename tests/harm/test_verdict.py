"""What is said of drops: who broke what, what may be noise, and nothing of agents that did no harm."""

from __future__ import annotations

from typing import Any

import pytest

from agentmerge.harm.record import HarmRow
from agentmerge.harm.verdict import beyond, judge
from tests.harm.test_remedies import row as remedy


def row(agent: str = "x", skill: str = "tool", **values: Any) -> HarmRow:
    usual = {"own": False, "drop": 0.1, "error": 0.05, "kept_tokens": 0.98, "kept_answers": 0.9, "harmed": False}
    return HarmRow(agent=agent, skill=skill, **{**usual, **values})


BROKEN = row(drop=3.2, error=0.4, kept_answers=0.27, kept_tokens=0.95, harmed=True)


def test_an_agent_that_broke_something_is_named_with_what_to_do() -> None:
    [found] = judge([BROKEN, row(agent="y")], [remedy("*.mlp.*", left=0.04, own=0.77)], 0.5)
    assert (found.rule, found.rows, found.units) == ("broke", ["x"], ["tool"])
    assert found.text.startswith("x broke what the base could do: tool by 3.20 +- 0.40 nats an answer, 27%")
    assert "Skip it in `*.mlp.*`" in found.text
    assert "of the damage 4% is left" in found.text
    assert "77% of what it does for its own skill stays" in found.text
    assert found.change == {"rules": [{"tensors": "*.mlp.*", "skip": ["x"]}]}


def test_without_a_remedy_it_is_left_out() -> None:
    [found] = judge([BROKEN], [remedy(safe=False)], 0.5)
    assert found.change == {"leave_out": ["x"]}
    assert "leave it out" in found.text


def test_what_may_be_noise_is_no_accusation() -> None:
    [found] = judge([row(drop=0.9, error=0.6)], [], 0.5)
    assert (found.rule, found.change) == ("unclear", None)
    assert "Ask more prompts" in found.text


def test_an_agents_own_skill_is_not_judged() -> None:
    found = judge([row(own=True, drop=5.0), row(skill="math", drop=0.2)], [], 0.5)
    assert [one.rule for one in found] == ["harmless"]
    assert "math by 0.20" in found[0].text
    [nothing] = judge([row(own=True, drop=5.0)], [], 0.5)
    assert "nothing to judge" in nothing.text


def test_where_all_are_harmful_the_base_is_doubted() -> None:
    other = BROKEN.model_copy(update={"agent": "y"})
    assert [one.rule for one in judge([BROKEN, other], [], 0.5)] == ["every", "broke", "broke"]
    assert "Is this the base" in judge([BROKEN, other], [], 0.5)[0].text
    assert [one.rule for one in judge([BROKEN], [], 0.5)] == ["broke"], "of one agent nobody knows"


def test_more_comparisons_ask_for_more() -> None:
    assert beyond(1) == pytest.approx(1.645, abs=1e-3)
    assert beyond(12) == pytest.approx(2.638, abs=1e-3)
    assert beyond(0) == beyond(1)
