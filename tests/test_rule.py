"""A rule changes a method setting by setting, however deep a setting lies; what it does not name stays."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Literal

import numpy as np
import pytest
from pydantic import Field

import agentmerge
from agentmerge import Recipe
from agentmerge.engine.rules import Rules
from agentmerge.errors import RecipeError
from agentmerge.frozen import Settings
from agentmerge.methods import registry
from agentmerge.methods.base import MergeMethod
from agentmerge.methods.calibrate import Calibrate
from agentmerge.methods.dare import Dare
from agentmerge.methods.ram import Ram
from agentmerge.methods.ties import Ties
from agentmerge.testing import read_checkpoint, write_checkpoint

if TYPE_CHECKING:
    from pathlib import Path

    from agentmerge.survey.statistic import Survey
    from agentmerge.tensors import Array, Stack

TIES = {"name": "ties", "density": 0.4, "normalize": False, "zero_sign": "plus"}
DARE = {"name": "dare", "density": 1.0, "then": TIES}


def recipe_of(method: Any, *rules: dict[str, Any], **more: Any) -> Recipe:
    return Recipe.parse({"base": "b", "agents": {"code": "c", "tool": "t"}, "method": method, "rules": rules, **more})


def decided(method: Any, *rules: dict[str, Any], tensor: str = "w", **more: Any) -> MergeMethod:
    return Rules(recipe_of(method, *rules, **more)).decide(tensor).method


@pytest.mark.parametrize(
    "then", [{"scale": 2.0}, {"name": "ties", "scale": 2.0}, {"name": "ties", "scale": "2"}], ids=str
)
def test_the_inner_method_keeps_what_a_rule_does_not_name(then: dict[str, Any]) -> None:
    expected = Ties(density=0.4, normalize=False, zero_sign="plus", scale=2.0)
    assert decided(DARE, {"tensors": "*", "then": then}) == Dare(density=1.0, then=expected, seed=0)


def test_a_name_alone_changes_nothing_where_it_is_the_inner_methods_own() -> None:
    assert decided(DARE, {"tensors": "*", "then": "ties"}) == decided(DARE)


@pytest.mark.parametrize("then", ["ram_plus", {"name": "ram_plus"}, {"name": "ram+"}], ids=str)
def test_another_inner_method_comes_with_its_own_defaults(then: Any) -> None:
    assert decided(DARE, {"tensors": "*", "then": then}).then == Ram()  # type: ignore[attr-defined]


def test_an_inner_method_is_the_same_by_its_other_spelling() -> None:
    inner = {"name": "ram_plus", "clip": 1.5}
    found = decided({"name": "dare", "then": inner}, {"tensors": "*", "then": {"name": "ram+", "rescale": 0.3}})
    assert found.then == Ram(clip=1.5, rescale=0.3)  # type: ignore[attr-defined]


def test_a_method_given_as_a_value_replaces_the_whole() -> None:
    assert decided(DARE, {"tensors": "*", "then": Ties(scale=3.0)}).then == Ties(scale=3.0)  # type: ignore[attr-defined]


def test_it_reaches_through_wrappers_around_wrappers() -> None:
    method = {"name": "calibrate", "retention": 0.9, "then": {"name": "dare", "density": 0.7, "seed": 5, "then": TIES}}
    found = decided(method, {"tensors": "*", "then": {"then": {"density": 0.9}}})
    inner = Ties(density=0.9, normalize=False, zero_sign="plus")
    assert found == Calibrate(retention=0.9, then=Dare(density=0.7, seed=5, then=inner))


def test_a_later_rule_builds_on_what_earlier_ones_made() -> None:
    rules = [
        {"tensors": "*", "then": {"scale": 2.0}},
        {"tensors": "w*", "then": {"density": 0.8}, "density": 0.5},
        {"tensors": "w", "then": {"scale": 3.0}},
    ]
    inner = {"normalize": False, "zero_sign": "plus"}
    assert decided(DARE, *rules) == Dare(density=0.5, seed=0, then=Ties(density=0.8, scale=3.0, **inner))  # type: ignore[arg-type]
    assert decided(DARE, *rules, tensor="v") == Dare(density=1.0, seed=0, then=Ties(density=0.4, scale=2.0, **inner))  # type: ignore[arg-type]


def test_settings_of_an_inner_method_that_an_earlier_rule_brought_in() -> None:
    rules = [{"tensors": "w*", "then": "ram_plus"}, {"tensors": "w", "then": {"clip": 1.0}}]
    assert decided(DARE, *rules).then == Ram(clip=1.0)  # type: ignore[attr-defined]
    with pytest.raises(RecipeError, match=r"rules\.1\.then\.clip: unknown field") as raised:
        decided(DARE, {"tensors": "v", "then": "ram_plus"}, rules[1])
    assert raised.value.problems[0].where.tensor == "w"


def test_a_random_inner_method_that_a_rule_brings_in_draws_from_the_recipes_seed() -> None:
    found = decided({"name": "calibrate", "then": "ram"}, {"tensors": "*", "then": {"name": "dare"}}, seed=7)
    assert found.then == Dare(seed=7)  # type: ignore[attr-defined]


def test_one_agents_density_changes_alone() -> None:
    method = {"name": "ties", "density": {"code": 0.5, "tool": 0.2}}
    rules = [{"tensors": "*", "density": {"tool": 0.3}}, {"tensors": "v", "density": 0.1}]
    assert decided(method, *rules) == Ties(density={"code": 0.5, "tool": 0.3})
    assert decided(method, *rules, tensor="v") == Ties(density=0.1)
    with pytest.raises(RecipeError, match=r"rules\.0\.density: nothing for agent 'code'"):
        recipe_of("ties", rules[0])


def test_settings_that_a_plug_in_nests_are_changed_one_by_one(monkeypatch: pytest.MonkeyPatch) -> None:
    class Limits(Settings):
        low: float = 0.0
        high: float = 1.0

    class Nested(MergeMethod):
        name: Literal["nested"] = "nested"
        limits: Limits = Limits()
        shares: dict[str, dict[str, float]] = Field(default={})

        def merge(self, stack: Stack, survey: Survey) -> Array:
            return stack.base

    monkeypatch.setattr(registry, "_registered", {"nested": Nested})
    method = {"name": "nested", "limits": {"low": 0.2}, "shares": {"a": {"x": 1, "y": 2}}}
    found = decided(method, {"tensors": "*", "limits": {"high": 0.9}, "shares": {"a": {"y": 3}, "b": {"z": 4}}})
    assert found == Nested(limits=Limits(low=0.2, high=0.9), shares={"a": {"x": 1, "y": 3}, "b": {"z": 4}})


@pytest.mark.parametrize(
    ("then", "words"),
    [
        ({"densty": 0.3}, r"rules\.0\.then\.densty: unknown field. Did you mean 'density'\?"),
        ({"density": 2}, r"rules\.0\.then\.density: Input should be less than or equal to 1"),
        ({"name": "tise"}, r"rules\.0\.then\.name: no method 'tise'. Did you mean 'ties'\?"),
        ({"name": "ram", "rescal": 1}, r"rules\.0\.then\.rescal: unknown field. Did you mean 'rescale'\?"),
        (None, r"rules\.0\.then: expected a name or a mapping"),
        ({"name": "region", "agent": "cod"}, r"rules\.0\.then\.agent: no agent 'cod'"),
    ],
)
def test_a_wrong_setting_is_told_with_its_path(then: Any, words: str) -> None:
    with pytest.raises(RecipeError, match=words):
        recipe_of(DARE, {"tensors": "*", "then": then})


def test_dare_around_ties_that_adds_still_adds_where_a_rule_scales_it(tmp_path: Path) -> None:
    """One agent of weight 0.25 and scale 2: the update is 0.25 * 2 of its own, not 2."""
    base = {"mlp.w": np.zeros((4, 8), np.float32), "v": np.zeros(8, np.float32)}
    sources = {
        "base": write_checkpoint(tmp_path / "base", base),
        "code": write_checkpoint(tmp_path / "code", {name: array + 1 for name, array in base.items()}),
    }
    recipe = {
        "base": str(sources["base"]),
        "agents": {"code": {"source": str(sources["code"]), "weight": 0.25}},
        "method": {"name": "dare", "density": 1.0, "then": {"name": "ties", "density": 1.0, "normalize": False}},
        "rules": [{"tensors": "*mlp*", "then": {"name": "ties", "density": 1.0, "scale": 2.0}}],
    }
    agentmerge.merge(recipe, tmp_path / "out")
    out = read_checkpoint(tmp_path / "out")
    assert np.unique(out["mlp.w"]).tolist() == [0.5]
    assert np.unique(out["v"]).tolist() == [0.25]


def test_check_and_merge_tell_once_a_rule_that_does_not_fit_what_another_made(tmp_path: Path) -> None:
    sources = {}
    for name, step in {"base": 0, "code": 1, "tool": 2}.items():
        sources[name] = str(write_checkpoint(tmp_path / name, {"w": np.full(4, step, np.float32)}, config={}))
    recipe = {"base": sources.pop("base"), "agents": sources, "method": DARE}
    rules = [{"tensors": "*", "then": "ram_plus"}, {"tensors": "w", "then": {"density": 0.3}}]
    agentmerge.check({**recipe, "rules": [{"tensors": "v", "then": "ram_plus"}, rules[1]]})
    found = [f for f in agentmerge.check({**recipe, "rules": rules}).findings if f.severity == "error"]
    with pytest.raises(RecipeError) as raised:
        agentmerge.merge({**recipe, "rules": rules}, tmp_path / "out")
    assert [finding.found for finding in found] == [p.found.rstrip(".") for p in raised.value.problems]
    assert len(found) == 1
    assert (
        "rules.1: does not fit w as the rules before it left it: rules.1.then.density: unknown field" in found[0].found
    )
