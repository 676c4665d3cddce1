"""Remedies: which are tried, which is best, and what they make of a recipe. Nothing here needs torch."""

from __future__ import annotations

from fnmatch import fnmatchcase
from typing import Any

import pytest

from agentmerge.errors import RecipeError
from agentmerge.harm.places import Place
from agentmerge.harm.record import RemedyRow
from agentmerge.harm.remedies import Remedy, applied, as_yaml, best, candidates, together
from agentmerge.recipe import Recipe

MLP = [Place(i, "mlp", "layers.") for i in range(3)]
ATTN = [Place(i, "self_attn", "layers.") for i in range(3)]
PLACES = [*MLP, *ATTN, Place(-1, "model.norm")]
RECIPE = {
    "base": "b",
    "agents": {"x": "x", "y": {"source": "y", "weight": 0.8}, "z": "z"},
    "method": {"name": "ties", "density": 0.3},
    "rules": [{"tensors": "*norm*", "skip": ["x", "y"]}],
}


def row(skip: str = "", weight: float = 0.5, **values: Any) -> RemedyRow:
    rules = {"rules": [{"tensors": skip, "skip": ["x"]}]}
    change = rules if skip else {"agents": {"x": {"weight": weight}}}
    usual = {"drop": 0.1, "left": 0.1, "own": 0.5, "energy": 0.5, "safe": True}
    return RemedyRow(agent="x", change=change, **{**usual, **values})


def test_the_place_that_holds_the_damage_is_tried_alone() -> None:
    drops = dict.fromkeys(PLACES, 0.001) | {MLP[0]: 1.0, MLP[1]: 0.2}
    tried = candidates(drops, {}, dict.fromkeys(PLACES, 1.0))
    assert Remedy(skipped=frozenset({MLP[0]})) in tried
    assert Remedy(skipped=frozenset(MLP)) in tried
    assert Remedy(0.5) in tried
    assert len(set(tried)) == len(tried)
    assert all(place in MLP for one in tried for place in one.skipped), "places of no matter are left alone"


def test_what_an_agent_needs_itself_is_skipped_later() -> None:
    drops = dict.fromkeys(PLACES, 0.0) | {MLP[0]: 1.0, ATTN[0]: 0.9}
    own = dict.fromkeys(PLACES, 0.0) | {MLP[0]: 5.0, ATTN[0]: 0.1}
    tried = candidates(drops, own, dict.fromkeys(PLACES, 1.0))
    assert Remedy(skipped=frozenset({ATTN[0]})) in tried


def test_an_unchanged_place_is_never_skipped_nor_are_all() -> None:
    energy = dict.fromkeys(PLACES, 0.0) | {MLP[0]: 1.0}
    assert all(not one.skipped for one in candidates({place: energy[place] for place in PLACES}, {}, energy))


def test_best_is_safe_and_keeps_most_less_what_is_left() -> None:
    weak, strong = row("a", own=0.6, left=0.3), row("b", own=0.55, left=0.05)
    assert best([weak, strong, row("c", own=0.9, safe=False)]) == strong


def test_a_weight_is_taken_only_where_nothing_can_be_skipped() -> None:
    assert best([row(weight=0.5, own=0.9), row("a", own=0.5)]) == row("a", own=0.5)
    assert best([row(weight=0.5, own=0.9), row("a", own=0.5, safe=False)]) == row(weight=0.5, own=0.9)


def test_without_prompts_of_its_own_the_task_vector_counts() -> None:
    assert best([row("a", own=None, energy=0.3), row("b", own=None, energy=0.7)]) == row("b", own=None, energy=0.7)


@pytest.mark.parametrize("rows", [[], [row(own=0.2)], [row(safe=False)], [row(own=0.3, left=0.4)]])
def test_what_is_not_worth_it_is_left_out(rows: list[RemedyRow]) -> None:
    assert best(rows) is None


def test_rules_for_several_agents_never_undo_each_other() -> None:
    chosen = {"x": Remedy(skipped=frozenset(MLP)), "y": Remedy(skipped=frozenset({MLP[1], ATTN[0]})), "z": Remedy(0.5)}
    change = together({**chosen, "w": None}, PLACES)
    assert change["leave_out"] == ["w"]
    assert change["agents"] == {"z": {"weight": 0.5}}
    for place in PLACES:
        tensor = f"model.layers.{place.layer}.{place.part}.up.weight" if place.layer >= 0 else f"{place.part}.weight"
        fitting = [rule["skip"] for rule in change["rules"] if fnmatchcase(tensor, rule["tensors"])]
        assert len(fitting) <= 1
        assert {name for names in fitting for name in names} == {
            name for name in ("x", "y") if place in chosen[name].skipped
        }


def test_advice_goes_into_a_recipe_and_is_read_back(tmp_path: Any) -> None:
    change = {
        "leave_out": ["z"],
        "agents": {"y": {"weight": 0.5}},
        "rules": [{"tensors": "*.mlp.*", "skip": ["x"]}],
    }
    made = applied(Recipe.parse(RECIPE), change)
    path = tmp_path / "advised.yaml"
    path.write_text(as_yaml(made))
    found = Recipe.load(path)
    assert found == made
    assert found.agent_names == ("x", "y")
    assert found.agents["y"].weight == pytest.approx(0.4)
    assert found.rules[-1].skip == ("x",)
    assert "run:" not in as_yaml(made), "what is usual is not said"


def test_a_recipe_without_need_of_advice_stays_as_it_is() -> None:
    recipe = Recipe.parse(RECIPE)
    assert applied(recipe, {}) == recipe


def test_all_left_out_or_a_recipe_that_speaks_of_who_is_left_out_are_told() -> None:
    with pytest.raises(RecipeError, match="use the base"):
        applied(Recipe.parse(RECIPE), {"leave_out": ["x", "y", "z"]})
    taking = {**RECIPE, "inputs": {"tokenizer_from": "z"}}
    with pytest.raises(RecipeError, match="Leave z out by hand"):
        applied(Recipe.parse(taking), {"leave_out": ["z"]})
