"""Later rules win, setting by setting; a rule that matches nothing is known."""

from __future__ import annotations

import re
from fnmatch import fnmatchcase
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agentmerge import Recipe
from agentmerge.engine.globs import Globs
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


def test_the_last_skip_wins_and_leaves_a_take_alone() -> None:
    rules = rules_of(
        {"tensors": "*", "take": "base"}, {"tensors": "*", "skip": "code"}, {"tensors": "w*", "skip": ["tool"]}
    )
    assert rules.decide("w").skip == {"tool"}
    assert rules.decide("v").skip == {"code"}
    assert rules.decide("w").take == "base"


def test_a_skip_is_taken_back_by_an_empty_one_and_by_nothing_else() -> None:
    rules = rules_of(
        {"tensors": "*", "skip": ["code", "tool"]}, {"tensors": "*", "rescale": 0.2}, {"tensors": "w", "skip": []}
    )
    assert rules.decide("w").skip == frozenset()
    assert rules.decide("v").skip == {"code", "tool"}


def test_a_take_is_taken_back_by_null() -> None:
    rules = rules_of({"tensors": "*", "take": "base"}, {"tensors": "w", "take": None})
    assert (rules.decide("w").take, rules.decide("w").reason) == (None, "")
    assert rules.decide("v").take == "base"


def test_what_a_rule_does_not_say_is_not_in_a_dumped_recipe_either() -> None:
    said = [{"tensors": "*", "skip": ["code"]}, {"tensors": "w", "rescale": 0.2}, {"tensors": "x", "skip": []}]
    recipe = Recipe.parse({"base": "b", "agents": {"code": "c"}, "method": "ram+", "rules": said})
    assert recipe.dump()["rules"] == said
    again = Rules(Recipe.parse(recipe.dump()))
    assert (again.decide("w").skip, again.decide("x").skip) == ({"code"}, frozenset())


@pytest.mark.parametrize("order", [1, -1])
def test_a_skipped_agent_is_read_where_the_tensor_is_taken_from_it(order: int) -> None:
    decision = rules_of(*[{"tensors": "w", "skip": "code"}, {"tensors": "w", "take": "code"}][::order]).decide("w")
    assert (decision.reads("code"), decision.reads("tool")) == (True, False)


@given(
    st.lists(st.text("ab.*?[]!-", max_size=6), max_size=12),
    st.text("ab.[]-!", max_size=8),
)
def test_globs_fit_as_fnmatch_says(globs: list[str], name: str) -> None:
    assert set(Globs(globs).fitting(name)) == {glob for glob in globs if fnmatchcase(name, glob)}


def test_rules_that_share_a_glob_all_hold() -> None:
    rules = rules_of({"tensors": "w", "rescale": 0.2}, {"tensors": "*", "clip": 1.0}, {"tensors": "w", "clip": 1.5})
    assert rules.decide("w").method == Ram(rescale=0.2, clip=1.5)
    assert rules.decide("v").method == Ram(clip=1.0)


def test_thousands_of_rules_are_tried_only_where_they_may_fit(monkeypatch: pytest.MonkeyPatch) -> None:
    tried: list[str] = []
    compiled = re.compile
    monkeypatch.setattr("agentmerge.engine.globs.re.compile", lambda p: tried.append(p) or compiled(p))
    rules = rules_of(*({"tensors": f"*layers.{i}.*", "skip": "code"} for i in range(3000)))
    assert rules.decide("model.layers.2999.mlp").skip == {"code"}
    assert len(tried) == 1


def test_rules_that_matched_nothing_are_listed() -> None:
    rules = rules_of({"tensors": "a*", "take": "base"}, {"tensors": "b*", "take": "base"})
    assert rules.unused() == ["a*", "b*"]
    rules.decide("bb")
    assert rules.unused() == ["a*"]
