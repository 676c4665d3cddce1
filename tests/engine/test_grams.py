"""Gram matrices beside an agent's weights: found by name, checked before the merge, read whole, told where wrong."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
import pytest

from agentmerge import merge
from agentmerge.engine.estimate import memory_bytes
from agentmerge.engine.preflight import check, planned
from agentmerge.errors import AlignmentError, DataError, RecipeError, SourceError
from agentmerge.files.save import save
from agentmerge.methods import registry
from agentmerge.methods.base import MergeMethod, Work
from agentmerge.recipe import Recipe
from agentmerge.tensors import Array, Stack, TensorSpec, as_float32
from agentmerge.testing import Sources, make_agents, random_base, random_gram, read_checkpoint, write_checkpoint

if TYPE_CHECKING:
    from pathlib import Path

    from agentmerge.survey.statistic import Survey

QUERY, KEY = "model.layers.0.self_attn.q_proj.weight", "model.layers.0.self_attn.k_proj.weight"


class Inputs(MergeMethod):
    """Base + the sum of the agents' Gram matrices' traces, of the layers that it reads them for."""

    name: Literal["inputs"] = "inputs"
    layers: tuple[str, ...] = (QUERY,)

    @property
    def reads(self) -> tuple[Literal["grams"], ...]:
        return ("grams",)

    def work(self, tensor: TensorSpec, agents: int) -> Work:
        if tensor.name not in self.layers:
            return Work()
        return Work(reach="tensor", share=1.0, gram=(tensor.shape[-1],) * 2)

    def merge(self, stack: Stack, survey: Survey) -> Array:
        if stack.block.tensor.name not in self.layers:
            return as_float32(stack.base)
        return as_float32(stack.base) + np.float32(sum(np.trace(gram) for gram in stack.grams if gram is not None))


@pytest.fixture(autouse=True)
def known(monkeypatch: pytest.MonkeyPatch, unsynced: None) -> None:
    monkeypatch.setattr(registry, "_registered", {})
    registry.register(Inputs)


@pytest.fixture
def tiny(tmp_path: Path) -> Sources:
    """A base with a layer that has the query's inputs, and three agents."""
    tensors = random_base(0)
    tensors[KEY] = tensors[QUERY][:32].copy()
    return make_agents(tmp_path / "in", base=tensors)


@pytest.fixture
def grams(tiny: Sources, tmp_path: Path) -> dict[str, dict[str, Array]]:
    """Of each agent, for the query's layer, written to its folder."""
    side = read_checkpoint(tiny.base)[QUERY].shape[-1]
    made = {name: {QUERY: random_gram(np.random.default_rng(len(name)), (side, side))} for name in tiny.agents}
    for name, tensors in made.items():
        write(tmp_path, name, tensors)
    return made


def write(folder: Path, name: str, tensors: dict[str, Array], **metadata: str) -> None:
    save(folder / f"grams-{name}", tensors, metadata=metadata)


def recipe(tiny: Sources, folder: Path, method: Any = "inputs", **sections: Any) -> dict[str, Any]:
    found: dict[str, Any] = tiny.recipe(method, **sections)
    agents = {name: {"source": str(path), "grams": str(folder / f"grams-{name}")} for name, path in tiny.agents.items()}
    return {**found, "agents": agents}


def moved(tiny: Sources, out: Path, tensor: str) -> float:
    """By how much every element of a tensor was moved."""
    base = read_checkpoint(tiny.base)[tensor].astype(np.float64)
    return float(np.median(read_checkpoint(out)[tensor].astype(np.float64) - base))


@pytest.mark.parametrize("block_size", [4096, 1_000_000])
def test_a_method_is_given_every_agents_matrix_whole(
    tiny: Sources, grams: Any, tmp_path: Path, block_size: int
) -> None:
    merge(recipe(tiny, tmp_path, run={"block_size": block_size}, output={"dtype": "float32"}), tmp_path / "out")
    expected = sum(np.trace(tensors[QUERY]) for tensors in grams.values())
    assert moved(tiny, tmp_path / "out", QUERY) == pytest.approx(expected, rel=1e-5)
    assert moved(tiny, tmp_path / "out", KEY) == 0


def test_an_agent_that_is_skipped_has_none(tiny: Sources, grams: Any, tmp_path: Path) -> None:
    rules = [{"tensors": QUERY, "skip": ["code", "tool"]}]
    merge(recipe(tiny, tmp_path, rules=rules, output={"dtype": "float32"}), tmp_path / "out")
    expected = np.trace(grams["memory"][QUERY])
    assert moved(tiny, tmp_path / "out", QUERY) == pytest.approx(expected, rel=1e-5)


def test_a_layer_that_shares_its_inputs_gets_the_same_matrix(tiny: Sources, grams: Any, tmp_path: Path) -> None:
    for name, tensors in grams.items():
        write(tmp_path, name, tensors, shared=json.dumps({KEY: QUERY}))
    method = {"name": "inputs", "layers": [QUERY, KEY]}
    merge(recipe(tiny, tmp_path, method, output={"dtype": "float32"}), tmp_path / "out")
    assert moved(tiny, tmp_path / "out", KEY) == pytest.approx(moved(tiny, tmp_path / "out", QUERY), rel=1e-5)


def test_names_may_have_another_prefix(tiny: Sources, grams: Any, tmp_path: Path) -> None:
    for name, tensors in grams.items():
        other = {key.replace("model.", "base_model.model.model."): array for key, array in tensors.items()}
        write(tmp_path, name, other, shared=json.dumps({f"module.{KEY}": next(iter(other))}))
    method = {"name": "inputs", "layers": [QUERY, KEY]}
    merge(recipe(tiny, tmp_path, method, output={"dtype": "float32"}), tmp_path / "out")
    expected = sum(np.trace(tensors[QUERY]) for tensors in grams.values())
    assert moved(tiny, tmp_path / "out", KEY) == pytest.approx(expected, rel=1e-5)


def test_the_memory_that_they_take_is_told_before(tiny: Sources, grams: Any, tmp_path: Path) -> None:
    with planned(Recipe.parse(recipe(tiny, tmp_path))) as plan:
        (job,) = [job for job in plan.jobs if job.grams]
        held = sum(tensors[QUERY].nbytes for tensors in grams.values())
        assert job.bytes_whole == held
        assert job.bytes_read(job.tensor.elements) == held + 4 * job.tensor.elements * 2
        with_grams = memory_bytes(plan)
        assert {f"{name}.grams" for name in tiny.agents} < set(plan.identities())
    with planned(Recipe.parse(recipe(tiny, tmp_path, {"name": "inputs", "layers": []}))) as plan:
        assert memory_bytes(plan) < with_grams


# what is wrong


def test_an_agent_without_them_is_told(tiny: Sources) -> None:
    with pytest.raises(
        RecipeError, match=r"agents\.code\.grams: missing, method 'inputs' reads the grams of every"
    ) as caught:
        Recipe.parse(tiny.recipe("inputs"))
    assert "`agentmerge grams`" in str(caught.value)


def test_a_missing_layer_is_told_with_what_to_do(tiny: Sources, grams: Any, tmp_path: Path) -> None:
    given = recipe(tiny, tmp_path, {"name": "inputs", "layers": [QUERY, KEY]})
    with pytest.raises(AlignmentError) as caught:
        merge(given, tmp_path / "out")
    told = str(caught.value)
    assert f"{KEY}: grams of agent 'code'" in told
    assert "has no such tensor" in told
    assert "`linear`" in told
    assert [finding.where for finding in check(Recipe.parse(given)).findings] == ["agent 'code'"]


@pytest.mark.parametrize("shape", [(3, 3), (16,), (2, 16, 16)])
def test_another_shape_as_of_another_model_is_told(
    tiny: Sources, grams: Any, tmp_path: Path, shape: tuple[int, ...]
) -> None:
    write(tmp_path, "memory", {QUERY: np.ones(shape)})
    with pytest.raises(AlignmentError, match=rf"{QUERY}: grams of agent 'memory' .* has shape \[.*expected shape \["):
        merge(recipe(tiny, tmp_path), tmp_path / "out")


def test_an_importance_in_its_place_is_told(tiny: Sources, grams: Any, tmp_path: Path) -> None:
    write_checkpoint(tmp_path / "grams-tool", read_checkpoint(tiny.agents["tool"]), config={})
    with pytest.raises((AlignmentError, DataError), match="agentmerge grams"):
        merge(recipe(tiny, tmp_path), tmp_path / "out")


def test_numbers_of_another_kind_are_told(tiny: Sources, grams: Any, tmp_path: Path) -> None:
    write(tmp_path, "code", {QUERY: np.ones(grams["code"][QUERY].shape, np.int32)})
    with pytest.raises(AlignmentError, match="I32"):
        merge(recipe(tiny, tmp_path), tmp_path / "out")


def nan(gram: Array) -> None:
    gram[3, 4] = gram[4, 3] = np.nan


def lopsided(gram: Array) -> None:
    gram[0, 1] += 0.1 * gram[0, 0]


def negative(gram: Array) -> None:
    gram[2, 2] = -1


@pytest.mark.parametrize(
    ("spoil", "told"),
    [(nan, "NaN or inf"), (lopsided, "not symmetric"), (negative, "a negative number on the diagonal")],
)
def test_what_is_no_gram_matrix_ends_the_merge(
    tiny: Sources, grams: Any, tmp_path: Path, spoil: Any, told: str
) -> None:
    spoilt = grams["tool"][QUERY].copy()
    spoil(spoilt)
    write(tmp_path, "tool", {QUERY: spoilt})
    with pytest.raises(DataError, match=rf"{QUERY}: grams of agent 'tool' .*: {told}"):
        merge(recipe(tiny, tmp_path), tmp_path / "out")
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize("shared", ["{", "[1]", '{"a": 1}', '{"a": "nowhere"}'])
def test_metadata_that_lead_nowhere_are_told(tiny: Sources, grams: Any, tmp_path: Path, shared: str) -> None:
    write(tmp_path, "code", grams["code"], shared=shared)
    with pytest.raises(SourceError, match="Make them again with `agentmerge grams`"):
        merge(recipe(tiny, tmp_path), tmp_path / "out")


def test_they_are_never_overwritten(tiny: Sources, grams: Any, tmp_path: Path) -> None:
    with pytest.raises(Exception, match="grams"):
        merge(recipe(tiny, tmp_path), tmp_path / "grams-code", overwrite=True)
    np.testing.assert_array_equal(read_checkpoint(tmp_path / "grams-code")[QUERY], grams["code"][QUERY])


def test_prompts_in_their_place_are_told(tiny: Sources, grams: Any, tmp_path: Path) -> None:
    given = recipe(tiny, tmp_path)
    given["agents"]["code"]["grams"] = str(tmp_path / "rollouts.jsonl")
    told = r"agents\.code\.grams.*rollouts\.jsonl are prompts.*`agentmerge grams code --data .*jsonl --out FOLDER`"
    with pytest.raises(RecipeError, match=told):
        merge(given, tmp_path / "out")
