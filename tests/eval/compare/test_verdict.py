"""What is said of constructed scores.

Items are ordered by how hard they are, so that better models get right what worse ones do: paired differences are then
as sure as they can be.
"""

from __future__ import annotations

from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

from agentmerge.eval.compare.changes import lighter, skipping
from agentmerge.recipe import Recipe

from .conftest import bits, merge

if TYPE_CHECKING:
    from collections.abc import Callable

    from agentmerge.eval.compare.rows import Comparison, Judgement

    from .conftest import Made

    Compare = Callable[..., Comparison]

N = 200


@pytest.fixture
def judged(made: Callable[..., Made], comparison: Compare) -> Callable[..., dict[str, list[Judgement]]]:
    """The verdict on base, the agents tool and code, and merges, by rule: right answers of N in tool and code."""

    def call(
        base: tuple[int, int], tool: tuple[int, int], code: tuple[int, int], merges: dict[str, tuple[int, int]]
    ) -> dict[str, list[Judgement]]:
        rows = {"base": base, "tool": tool, "code": code, **merges}
        for name, right in rows.items():
            facts = merge(method=name.split("-")[0]) if name in merges else None
            model = made(name, merge=facts).suite("bfcl", "tool", {"": bits(right[0], N)})
            model.suite("live", "code", {"": bits(right[1], N)})
        found: dict[str, list[Judgement]] = {}
        for one in comparison(*rows).verdict:
            found.setdefault(one.rule, []).append(one)
        return found

    return call


Judged = "Callable[..., dict[str, list[Judgement]]]"


def test_an_agent_that_broke_a_skill_which_a_merge_took_over(judged: Judged) -> None:
    found = judged((100, 60), (150, 60), (20, 120), {"ram": (40, 115), "wudi_auto": (148, 118)})
    (broke,) = found["broke"]
    assert broke.rows == ["code", "ram"]
    assert "code broke what base could do" in broke.text
    assert "by 40.0 points" in broke.text
    assert "ram took it over: ram in" in broke.text
    assert broke.change == {"agents": {"code": {"weight": 0.5}}}, "it has a skill of its own: lighter, not out"
    assert "wudi_auto" not in broke.rows


def test_an_agent_that_broke_a_skill_and_learned_nothing_is_left_out(judged: Judged) -> None:
    found = judged((100, 60), (150, 60), (20, 61), {"ram": (40, 60)})
    assert found["broke"][0].change == {"leave_out": ["code"]}
    assert "leave it out" in found["broke"][0].text


def test_before_a_merge_there_is_a_warning(judged: Judged) -> None:
    (said,) = judged((100, 60), (150, 60), (20, 120), {})["broke"]
    assert said.text.endswith("A merge may take it over: score it there, too.")


def test_what_no_merge_took_over_needs_no_change(judged: Judged) -> None:
    found = judged((100, 60), (150, 60), (20, 120), {"wudi_auto": (148, 118)})
    assert found["broke"][0].change is None
    assert "nothing needs to change" in found["broke"][0].text


def test_no_merge_is_advised_to_take_more_of_an_agent_that_broke_something(judged: Judged) -> None:
    found = judged((100, 60), (150, 60), (20, 120), {"ram": (40, 80), "wudi_auto": (148, 80)})
    for one in found["retention"]:
        assert "code" not in (one.change or {}).get("agents", {})
    assert "code can't simply be given more" in found["retention"][0].text


def test_noise_alone_is_called_noise(judged: Judged) -> None:
    found = judged((100, 60), (103, 61), (99, 62), {"ram": (101, 60), "ties": (102, 61)})
    assert "more than noise" in found["noise"][0].text
    assert not found.keys() & {"broke", "interference", "retention"}
    assert [one.rows for one in found["nothing_learned"]] == [["tool"], ["code"]]
    assert found["best_agent"][0].change is None


def test_noise_is_not_said_where_a_merge_is_told_from_the_best_agent(
    made: Callable[..., Made], comparison: Compare
) -> None:
    """Neither skill alone shows it beyond noise, and there is no base; the mean of both does."""
    for name, right in (("tool", 100), ("code", 99), ("ram", 104)):
        model = made(name, merge=merge("ram") if name == "ram" else None)
        for suite, domain in (("bfcl", "tool"), ("live", "code")):
            model.suite(suite, domain, {"": bits(right, N)})
    rules = {one.rule: one for one in comparison("tool", "code", "ram").verdict}
    assert "it is above it by" in rules["best_agent"].text
    assert "noise" not in rules


def test_an_agent_that_beats_every_merge(judged: Judged) -> None:
    found = judged((100, 60), (180, 150), (100, 100), {"ram": (120, 80), "ties": (110, 90)})
    (said,) = found["best_agent"]
    assert said.change == {"use": "tool"}
    assert "beats every merge" in said.text
    assert "Don't merge" in said.text


def test_a_merge_above_every_agent(judged: Judged) -> None:
    found = judged((100, 60), (150, 60), (100, 120), {"ram": (145, 115), "ties": (101, 61)})
    (said,) = found["best_agent"]
    assert said.change is None
    assert "ram" in said.rows
    assert "it is above it by +10.0 points" in said.text, "(145 + 115) / 400 against (100 + 120) / 400"


def test_the_best_merge_and_those_that_are_level_with_it(judged: Judged) -> None:
    found = judged((100, 60), (150, 60), (100, 120), {"ram": (145, 115), "ram-2": (144, 116), "ties": (101, 61)})
    (said,) = found["best_merge"]
    assert "above ties by" in said.text
    assert "ram-2 is not told from it" in said.text or "ram is not told from it" in said.text
    assert set(said.rows) == {"ram", "ram-2"}


def test_what_is_kept_and_what_was_lost(judged: Judged) -> None:
    found = judged((100, 60), (150, 60), (100, 120), {"ram": (125, 120)})
    (said,) = found["retention"]
    assert "50% (" in said.text
    assert "of the 25.0 points of tool in tool, below it by 12.5 points" in said.text
    assert "100% (" in said.text
    assert said.change == {"agents": {"tool": {"weight": 2.0}}}


def test_a_merge_that_loses_of_every_agent_gets_another_method(judged: Judged) -> None:
    found = judged((100, 60), (150, 60), (100, 120), {"ram": (115, 75), "wudi_auto": (115, 75)})
    ram, wudi = found["retention"]
    assert ram.change == {"method": {"name": "wudi_auto"}}
    assert wudi.change == {"agents": {"tool": {"weight": 2.0}, "code": {"weight": 2.0}}}


def test_a_merge_below_the_base_where_no_agent_is(judged: Judged) -> None:
    found = judged((100, 60), (150, 60), (100, 120), {"ties": (60, 120)})
    (said,) = found["interference"]
    assert said.rows == ["ties"]
    assert "where no agent is: bfcl" in said.text.lower()
    assert said.change == {"method": {"name": "wudi_auto"}}


def test_independent_noise_is_seldom_called_a_difference(made: Callable[..., Made], comparison: Compare) -> None:
    """Ten models that all get half of the items: of 20 comparisons of families of 9 x 3 at most three find anything."""
    found = 0
    for trial in range(20):
        rng = np.random.default_rng(trial)
        names = [f"{trial}-{i}" for i in range(3)]
        made(f"{trial}/base").suite("bfcl", "tool", {"": rng.integers(0, 2, 60).tolist()})
        for name in names:
            made(f"{trial}/{name}").suite("bfcl", "tool", {"": rng.integers(0, 2, 60).tolist()})
        verdict = comparison(f"{trial}/base", *(f"{trial}/{name}" for name in names), swaps=999).verdict
        found += any(one.rule == "broke" for one in verdict)
    assert found <= 3


def test_a_merge_whose_record_tells_where_an_agent_changed_gets_a_rule() -> None:
    code = {"attention q": 100, "attention o": 50, "mlp up": 350, "norm": 900}
    modules = [*((kind, "code", changed) for kind, changed in code.items()), ("attention q", "tool", 9999)]
    record: Any = SimpleNamespace(
        findings=SimpleNamespace(
            modules=[SimpleNamespace(kind=kind, agent=agent, changed=changed) for kind, agent, changed in modules]
        )
    )
    change, text = skipping(record, "code") or ({}, "")
    assert change == {"rules": [{"tensors": "*mlp*", "skip": ["code"]}]}
    assert "`*mlp*`, where 70% of its changes" in text
    assert skipping(record, "memory") is None
    assert skipping(None, "code") is None
    assert skipping(SimpleNamespace(findings=None), "code") is None  # type: ignore[arg-type]


@pytest.mark.parametrize("change", [{"rules": [{"tensors": "*mlp*", "skip": ["code"]}]}, lighter("code")[0]])
def test_changes_are_what_a_recipe_takes(change: dict[str, Any]) -> None:
    agents = {"code": {"source": "c", **change.get("agents", {}).get("code", {})}, "tool": {"source": "t"}}
    recipe = Recipe.parse({"base": "b", "agents": agents, "method": "ram", "rules": change.get("rules", [])})
    assert recipe.agents["code"].weight == change.get("agents", {}).get("code", {}).get("weight", 1)
