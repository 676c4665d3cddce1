"""Later rules win, setting by setting; a rule that matches nothing is known."""

from __future__ import annotations

from typing import Any

import pytest

from agentmerge import Recipe
from agentmerge.engine.rules import Rules
from agentmerge.methods.ram import Ram


def rules_of(*rules: dict[str, Any]) -> Rules:
    agents = {"code": "c", "tool": "t"}
    return Rules(Recipe.parse({"base": "b", "agents": agents, "method": "ram+", "rules": rules}))


def test_without_rules_the_recipes_method_holds_everywhere() -> None:
    decision = rules_of().decide("any.weight")
    assert (decision.method, decision.take, decision.skip, decision.reason) == (Ram(), None, frozenset(), "")


@pytest.mark.parametrize(
    ("glob", "name", "matches"),
    [
        ("*.mlp.*", "model.layers.0.mlp.up_proj.weight", True),
        ("*.mlp.*", "mlp.up", False),
        ("lm_head*", "lm_head.weight", True),
        ("LM_HEAD*", "lm_head.weight", False),
        ("*layers.[0-3].*", "model.layers.2.x", True),
        ("*layers.[0-3].*", "model.layers.12.x", False),
        ("*layers.?.*", "model.layers.12.x", False),
        ("model.norm.weight", "model.norm.weight", True),
        ("model.norm", "model.norm.weight", False),
    ],
)
def test_globs_match_whole_names_and_case(glob: str, name: str, *, matches: bool) -> None:
    decision = rules_of({"tensors": glob, "rescale": 0.5}).decide(name)
    assert (decision.method == Ram(rescale=0.5)) is matches


def test_later_rules_win_setting_by_setting() -> None:
    rules = rules_of(
        {"tensors": "*", "rescale": 0.2, "clip": 1.0},
        {"tensors": "*norm*", "rescale": 0.3},
        {"tensors": "*", "threshold": "1e-4"},
    )
    assert rules.decide("a").method == Ram(rescale=0.2, clip=1.0, threshold=1e-4)
    assert rules.decide("norm").method == Ram(rescale=0.3, clip=1.0, threshold=1e-4)


def test_the_last_take_wins_and_settings_end_it() -> None:
    taken = [{"tensors": "*", "take": "base"}, {"tensors": "*", "take": "code"}]
    decision = rules_of(*taken).decide("w")
    assert decision.take == "code"
    assert decision.reason == "rules.1 takes it from 'code'"
    again = rules_of(*taken, {"tensors": "w", "rescale": 0.2}).decide("w")
    assert (again.take, again.reason, again.method) == (None, "", Ram(rescale=0.2))


def test_skips_add_up_and_leave_a_take_alone() -> None:
    rules = rules_of(
        {"tensors": "*", "take": "base"}, {"tensors": "*", "skip": "code"}, {"tensors": "w*", "skip": ["tool"]}
    )
    assert rules.decide("w").skip == {"code", "tool"}
    assert rules.decide("v").skip == {"code"}
    assert rules.decide("w").take == "base"


def test_rules_that_matched_nothing_are_listed() -> None:
    rules = rules_of({"tensors": "a*", "take": "base"}, {"tensors": "b*", "take": "base"})
    assert rules.unused() == ["a*", "b*"]
    rules.decide("bb")
    assert rules.unused() == ["a*"]
