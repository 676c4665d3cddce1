"""What an agent has otherwise than the base is told from both sides, for every agent, in merge, check and record."""

from __future__ import annotations

import numpy as np
import pytest

from tests.symptoms.conftest import BF16, DOWN, EMBED, HEAD, MLP, NORM, Case, model, trained


def renamed(tensors, **names):
    return {names.get(name, name): array for name, array in tensors.items()}


def test_missing_and_extra_tensors_of_one_agent_are_both_named(case: Case) -> None:
    agent = trained(model(), 1)
    agent["extra.w"] = agent[HEAD]
    del agent[NORM]
    case.put("base", model())
    case.put("code", agent)
    case.refused_early(f"agent 'code' lacks 1: {NORM}", "agent 'code' has 1 more: extra.w")
    (finding,) = (f for f in case.check().findings if f.severity == "error")
    assert NORM in finding.found
    assert "extra.w" in finding.found


def test_both_sides_of_every_agent_are_named(case: Case) -> None:
    case.put("base", model())
    for i, name in enumerate(("code", "memory", "tool")):
        agent = trained(model(), i)
        agent[f"extra.{name}"] = agent.pop([NORM, DOWN, MLP][i])[..., :3].copy()
        case.put(name, agent)
    message = case.refused_early()
    told = "\n".join(f.found for f in case.check().findings)
    for i, name in enumerate(("code", "memory", "tool")):
        for text in (f"agent '{name}' lacks 1: {[NORM, DOWN, MLP][i]}", f"agent '{name}' has 1 more: extra.{name}"):
            assert text in message
            assert text in told


@pytest.mark.parametrize("inputs", [{"missing": "base"}, {"extra": "ignore"}])
def test_leave_for_one_side_still_shows_both(case: Case, inputs) -> None:
    agent = trained(model(), 1)
    agent["extra.w"] = agent.pop(NORM)[:3].copy()
    case.put("base", model())
    case.put("code", agent)
    case.refused_early(f"lacks 1: {NORM}", "has 1 more: extra.w", inputs=inputs)


def test_what_is_missing_with_leave_is_a_warning_and_in_the_record(case: Case) -> None:
    case.put("base", model())
    agent = trained(model(), 1)
    case.put("code", {name: agent[name] for name in (MLP, DOWN)})
    case.put("tool", trained(model(), 2))
    record = case.merge(inputs={"missing": "base"})
    text = f"agent 'code': lacks 3 of the base's 5 tensors and counts as unchanged there: {EMBED}, {NORM}, {HEAD}"
    assert text in record.warnings
    assert record.tensors.missing == {"code": [EMBED, NORM, HEAD]}
    assert record.tensors.left_out == {}
    found = case.check(inputs={"missing": "base"}).findings
    assert any(f.severity == "warning" and "lacks 3 of the base's 5 tensors" in f.found for f in found)


def test_what_is_left_out_with_leave_is_in_the_record(case: Case) -> None:
    case.put("base", model())
    case.put("code", {**trained(model(), 1), "v_head.w": np.ones(3, BF16)})
    assert case.merge(inputs={"extra": "ignore"}).tensors.left_out == {"code": ["v_head.w"]}


def test_what_a_rule_does_not_read_is_not_missing(case: Case) -> None:
    case.put("base", model())
    case.put("code", {name: array for name, array in trained(model(), 1).items() if name != NORM})
    rules = [{"tensors": NORM, "take": "base"}]
    assert case.merge(rules=rules).warnings == []


RENAMES = {
    "unknown prefix": lambda n: n.replace("model.layers", "model.text.layers"),
    "whole prefix": lambda n: f"student.net.{n}",
    "other words": lambda n: n.replace("mlp.up_proj", "feed_forward.up_proj"),
}


@pytest.mark.parametrize("rename", RENAMES)
def test_tensors_under_an_unknown_name_look_renamed_and_no_way_round_is_advised(case: Case, rename: str) -> None:
    agent = {RENAMES[rename](name): array for name, array in trained(model(), 1).items()}
    case.put("base", model())
    case.put("code", agent)
    message = case.refused_early(f"looks renamed: {RENAMES[rename](MLP)} for {MLP}" if rename != "whole prefix" else
                                 "looks renamed: ")  # fmt: skip
    assert "--missing base" not in message
    assert "--extra ignore" not in message


def test_the_way_round_taken_all_the_same_is_warned_of(case: Case) -> None:
    agent = {RENAMES["unknown prefix"](name): array for name, array in trained(model(), 1).items()}
    case.put("base", model())
    case.put("code", agent)
    warnings = case.merge(inputs={"missing": "base", "extra": "ignore"}).warnings
    assert any("what was trained in 2 tensors is lost" in w and f"for {MLP}" in w for w in warnings)


def test_another_shape_is_no_renaming(case: Case) -> None:
    agent = trained(model(), 1)
    agent["model.final.weight"] = agent.pop(NORM)[:5].copy()
    case.put("base", model())
    case.put("code", agent)
    assert "looks renamed" not in case.refused_early("--missing base")
