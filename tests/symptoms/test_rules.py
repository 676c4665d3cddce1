"""Rules that meet in one tensor: what is copied, who is skipped, and what the record says of it."""

from __future__ import annotations

import shutil
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

import agentmerge
from agentmerge.errors import MergeError, RecipeError
from agentmerge.testing import read_checkpoint, write_checkpoint

if TYPE_CHECKING:
    from pathlib import Path

X = {"base": [0, 0, 0], "a": [1, 2, 0], "b": [0, 3, 4]}
"""One tensor of each source; another one beside it, "y", is changed by both agents."""


@pytest.fixture
def recipe(tmp_path: Path) -> dict[str, Any]:
    for n, (name, values) in enumerate(X.items()):
        tensors = {"x": np.array(values, np.float32), "y": np.arange(4, dtype=np.float32) * (1 + n)}
        write_checkpoint(tmp_path / name, tensors, config={"model_type": "llama"})
    agents = {name: str(tmp_path / name) for name in ("a", "b")}
    return {"base": str(tmp_path / "base"), "agents": agents, "method": "ram"}


def merged(recipe: dict[str, Any], tmp_path: Path, *rules: dict[str, Any], **more: Any) -> tuple[list[float], Any]:
    """The elements of x, and the record."""
    record = agentmerge.merge({**recipe, **more, "rules": list(rules)}, tmp_path / "out", overwrite=True)
    return read_checkpoint(tmp_path / "out")["x"].tolist(), record


SKIP, TAKE = {"tensors": "x", "skip": "a"}, {"tensors": "x", "take": "a"}


@pytest.mark.parametrize(
    "rules",
    [
        [SKIP, TAKE],
        [TAKE, SKIP],
        [{"tensors": "*", "skip": "a"}, TAKE],
        [{"tensors": "x", "skip": ["a", "b"]}, TAKE],
        [{"tensors": "x", "skip": "a", "take": "a"}],
    ],
    ids=str,
)
def test_a_tensor_is_taken_from_an_agent_that_is_skipped_there(recipe, tmp_path: Path, rules) -> None:
    found, record = merged(recipe, tmp_path, *rules)
    assert found == X["a"]
    number = next(i for i, rule in enumerate(rules) if "take" in rule)
    assert [(one.name, one.reason) for one in record.tensors.copied] == [("x", f"rules.{number} takes it from 'a'")]


def test_it_is_taken_from_the_base_and_from_the_other_agent_too(recipe, tmp_path: Path) -> None:
    assert merged(recipe, tmp_path, SKIP, {"tensors": "x", "take": "base"})[0] == X["base"]
    assert merged(recipe, tmp_path, SKIP, {"tensors": "x", "take": "b"})[0] == X["b"]


def test_a_taken_tensor_must_fit_although_its_agent_is_skipped(recipe, tmp_path: Path) -> None:
    tensors = {"x": np.zeros(5, np.float32), "y": np.ones(4, np.float32)}
    shutil.rmtree(tmp_path / "a")
    write_checkpoint(tmp_path / "a", tensors, config={"model_type": "llama"})
    assert agentmerge.check({**recipe, "rules": [SKIP]}).ok
    record = agentmerge.check({**recipe, "rules": [SKIP, TAKE]})
    assert "shape [5]" in record.findings[0].found
    with pytest.raises(MergeError, match=r"shape \[5\]"):
        merged(recipe, tmp_path, SKIP, TAKE)


def test_a_tensor_that_the_agent_lacks_is_said_to_be_the_bases(recipe, tmp_path: Path) -> None:
    shutil.rmtree(tmp_path / "a")
    write_checkpoint(tmp_path / "a", {"y": np.ones(4, np.float32)}, config={"model_type": "llama"})
    found, record = merged(recipe, tmp_path, TAKE, inputs={"missing": "base"})
    assert found == X["base"]
    assert record.tensors.copied[0].reason == "rules.0 takes it from 'a', which lacks it: the base's is copied"


@pytest.mark.parametrize(
    ("rules", "right"),
    [
        ([{"tensors": "*", "skip": "a"}, {"tensors": "x", "skip": []}], [1, 2.5, 4]),
        ([{"tensors": "*", "skip": "a"}, {"tensors": "x", "skip": "b"}], X["a"]),
        ([{"tensors": "x", "skip": "b"}, {"tensors": "*", "threshold": 1e-6}], X["a"]),
    ],
    ids=["taken back", "replaced", "kept"],
)
def test_the_last_rule_that_says_whom_to_skip_wins(recipe, tmp_path: Path, rules, right) -> None:
    assert merged(recipe, tmp_path, *rules)[0] == right


def test_a_record_merges_again_to_the_same(recipe, tmp_path: Path) -> None:
    found, record = merged(recipe, tmp_path, SKIP, {"tensors": "*", "clip": 1.0})
    again = agentmerge.merge(record.recipe, tmp_path / "again")
    assert read_checkpoint(tmp_path / "again")["x"].tolist() == found == X["b"]
    assert again.recipe == record.recipe


# an agent that the rules leave no part


@pytest.mark.parametrize("rules", [[{"tensors": "*", "skip": "a"}], [{"tensors": "[xy]", "skip": ["a"]}]], ids=str)
def test_an_agent_that_is_skipped_everywhere_is_told_so_by_check_and_merge(recipe, tmp_path: Path, rules) -> None:
    said = "agent 'a' takes part in no merged tensor: rules skip it"
    with pytest.raises(RecipeError, match=said) as caught:
        merged(recipe, tmp_path, *rules)
    assert "identical to the base" not in str(caught.value)
    record = agentmerge.check({**recipe, "rules": rules})
    assert (record.ok, record.findings[0].found.startswith(said)) == (False, True)
    allowed = {**recipe, "rules": rules, "inputs": {"unchanged": "allow"}}
    assert agentmerge.merge(allowed, tmp_path / "allowed").warnings[0].startswith(said)


def test_an_agent_that_gives_copied_tensors_alone_is_a_warning(recipe, tmp_path: Path) -> None:
    found, record = merged(recipe, tmp_path, {"tensors": "*", "skip": "a"}, TAKE)
    assert found == X["a"]
    assert record.warnings == [
        "agent 'a' takes part in no merged tensor: rules skip it or copy the tensor, or it lacks them; it gives the "
        "copied ones"
    ]


def test_many_rules_that_match_nothing_are_ten_warnings_and_a_number(recipe, tmp_path: Path) -> None:
    _, record = merged(recipe, tmp_path, *({"tensors": f"none.{i}", "skip": "a"} for i in range(500)))
    assert len(record.warnings) == 11
    assert record.warnings[0] == "rule 'none.0' matches no tensor"
    assert record.warnings[-1] == "490 more rules match no tensor"
