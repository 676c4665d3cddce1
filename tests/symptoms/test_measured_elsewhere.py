"""Importance, grams and keep that were measured on other weights than they lie beside are told before the merge."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

from agentmerge import merge
from agentmerge.alike.measured import MEASURED_ON, measured_on
from agentmerge.deltas.pack import pack
from agentmerge.engine.preflight import check, planned_from_afar
from agentmerge.errors import Problem, RecipeError, SourceError
from agentmerge.files.save import save
from agentmerge.recipe import Recipe
from agentmerge.sources.opening import opened
from agentmerge.testing import CONFIG, Sources, make_agents, random_base, random_gram, read_checkpoint, write_checkpoint
from tests.sources.adapters import lora, matrices, put_adapter, summed

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from agentmerge.tensors import Array

pytestmark = pytest.mark.usefixtures("unsynced")
QUERY = "model.layers.0.self_attn.q_proj.weight"
REST = "model.layers.0.mlp.down_proj.weight"
HEAD, EMBEDDING, NORM = "lm_head.weight", "model.embed_tokens.weight", "model.norm.weight"
SHAPES = {EMBEDDING: (32, 24), QUERY: (24, 24), REST: (24, 200), NORM: (24,)}
TIED = {**CONFIG, "tie_word_embeddings": True}
METHODS = {"grams": "regmean", "importance": "fisher", "keep": "wudi"}


@pytest.fixture
def sources(tmp_path: Path) -> Sources:
    return make_agents(tmp_path / "in", agents=2, densities=(0.3, 0.3), base=random_base(0, SHAPES), config=TIED)


def measure(model: Path, out: Path, kind: str = "grams", *, told: bool = True) -> Path:
    """What the commands write of a model, with numbers by chance."""
    rng = np.random.default_rng(0)
    with opened(None, str(model)) as source:
        grams = {n: random_gram(rng, (s.shape[-1],) * 2) for n, s in source.specs.items() if n.endswith("proj.weight")}
        importance = {name: rng.random(spec.shape, np.float32) for name, spec in source.specs.items()}
        metadata = measured_on(source.weights) if told else None
    save(out, importance if kind == "importance" else grams, metadata=metadata)
    name = "importance.json" if kind == "importance" else "grams.json"
    (out / name).write_text(json.dumps({"model": {"source": str(model)}}))
    return out


def recipe(sources: Sources, beside: Mapping[str, Path], kind: str = "grams", **sections: Any) -> dict[str, Any]:
    """With what lies beside each agent or, as "base", what the base must keep."""
    found: dict[str, Any] = sources.recipe(METHODS[kind], **sections)
    if kind == "keep":
        return {**found, "keep": str(beside["base"])}
    agents = {name: {"source": str(path), kind: str(beside[name])} for name, path in sources.agents.items()}
    return {**found, "agents": agents}


def errors(given: dict[str, Any]) -> list[str]:
    found = [finding for finding in check(Recipe.parse(given)).findings if finding.severity == "error"]
    return [str(Problem(one.found, one.expected, one.todo)) for one in found]


def each(sources: Sources, folder: Path, kind: str = "grams") -> dict[str, Path]:
    return {name: measure(path, folder / f"{kind}-{name}", kind) for name, path in sources.agents.items()}


@pytest.mark.parametrize("kind", ["grams", "importance"])
def test_two_agents_folders_that_are_swapped_are_both_told_with_whose_they_are(
    kind: str, sources: Sources, tmp_path: Path
) -> None:
    of = each(sources, tmp_path, kind)
    code, tool = (str(sources.agents[name]) for name in ("code", "tool"))
    assert errors(recipe(sources, of, kind)) == []
    given = recipe(sources, {"code": of["tool"], "tool": of["code"]}, kind)
    assert errors(given) == [
        f"agents.code.{kind}: {of['tool']} was measured on agent 'tool' ({tool}), expected agent 'code' ({code}). Name "
        f"what `agentmerge {kind}` made of that, or set inputs.measured: allow (--measured allow) to merge with this "
        "all the same.",
        f"agents.tool.{kind}: {of['code']} was measured on agent 'code' ({code}), expected agent 'tool' ({tool}). Name "
        f"what `agentmerge {kind}` made of that, or set inputs.measured: allow (--measured allow) to merge with this "
        "all the same.",
    ]
    with pytest.raises(RecipeError, match=rf"agents\.code\.{kind}: .*\n?.*agents\.tool\.{kind}: "):
        merge(given, tmp_path / "out")
    with pytest.raises(RecipeError, match=kind), planned_from_afar(Recipe.parse(given)):
        pass  # what a dry run looks at
    assert not (tmp_path / "out").exists()


def test_with_leave_they_are_merged_and_the_record_says_so(sources: Sources, tmp_path: Path) -> None:
    of = each(sources, tmp_path)
    given = recipe(sources, {"code": of["tool"], "tool": of["tool"]}, inputs={"measured": "allow"})
    told = [note for note in merge(given, tmp_path / "out").warnings if "measured" in note]
    assert told == [
        f"agents.code.grams: {of['tool']} was measured on agent 'tool' ({sources.agents['tool']}), not on agent 'code' "
        f"({sources.agents['code']})"
    ]


@pytest.mark.parametrize("kind", ["grams", "importance"])
def test_the_bases_in_the_place_of_an_agents_are_told(kind: str, sources: Sources, tmp_path: Path) -> None:
    of = each(sources, tmp_path, kind) | {"tool": measure(sources.base, tmp_path / "of-base", kind)}
    (told,) = errors(recipe(sources, of, kind))
    assert f"agents.tool.{kind}: {of['tool']} was measured on the base ({sources.base}), expected agent 'tool'" in told


def test_what_another_base_must_keep_is_told(sources: Sources, tmp_path: Path) -> None:
    assert errors(recipe(sources, {"base": measure(sources.base, tmp_path / "own")}, "keep")) == []
    other = write_checkpoint(tmp_path / "other", random_base(7, SHAPES), config=TIED)
    for model, theirs in ((other, "other weights ("), (sources.agents["tool"], "agent 'tool' (")):
        (told,) = errors(recipe(sources, {"base": measure(model, tmp_path / "keep")}, "keep"))
        assert told.startswith(f"keep: {tmp_path / 'keep'} was measured on {theirs}")
        assert f", expected the base ({sources.base}). Name what `agentmerge grams` made of that, or set" in told


def test_what_a_merge_is_put_onto_may_be_what_must_be_kept(sources: Sources, tmp_path: Path) -> None:
    onto = write_checkpoint(tmp_path / "onto", random_base(7, SHAPES), config=TIED)
    for model in (onto, sources.base):
        given = recipe(sources, {"base": measure(model, tmp_path / "keep")}, "keep", onto=str(onto))
        assert errors(given) == []
    given = recipe(sources, {"base": measure(sources.agents["code"], tmp_path / "keep")}, "keep", onto=str(onto))
    assert "was measured on agent 'code'" in errors(given)[0]


def test_a_missing_record_leaves_out_what_they_were_measured_on(sources: Sources, tmp_path: Path) -> None:
    of = each(sources, tmp_path) | {
        "code": measure(write_checkpoint(tmp_path / "other", random_base(7, SHAPES), config=TIED), tmp_path / "old")
    }
    assert f"was measured on other weights ('{str(tmp_path)[:5]}" in errors(recipe(sources, of))[0]
    (of["code"] / "grams.json").unlink()
    (told,) = errors(recipe(sources, of))
    assert told.startswith(f"agents.code.grams: {of['code']} was measured on other weights: {QUERY} differs, expected")


# the same weights, stored otherwise


def tied(tensors: dict[str, Array]) -> dict[str, Array]:
    return {**tensors, HEAD: tensors[EMBEDDING].copy()}


def prefixed(tensors: dict[str, Array]) -> dict[str, Array]:
    return {f"base_model.{name}": array for name, array in tensors.items()}


def backwards(tensors: dict[str, Array]) -> dict[str, Array]:
    return dict(reversed(tensors.items()))


def wider(tensors: dict[str, Array]) -> dict[str, Array]:
    return {name: array.astype(np.float32) for name, array in tensors.items()}


@pytest.mark.parametrize("how", [tied, prefixed, backwards, wider])
def test_a_copy_of_the_same_weights_is_taken(how: Any, sources: Sources, tmp_path: Path) -> None:
    of = each(sources, tmp_path)
    copy = write_checkpoint(
        tmp_path / "copy", how(read_checkpoint(sources.agents["code"])), config=TIED, shard_size=4000
    )
    assert len(list(copy.glob("*.safetensors"))) > 1
    copied = Sources(sources.base, {**sources.agents, "code": copy})
    assert not [told for told in errors(recipe(copied, of)) if "measured" in told]
    given = recipe(sources, {**of, "code": measure(copy, tmp_path / "of-copy")})
    assert not [told for told in errors(given) if "measured" in told]


def test_samples_are_the_same_however_weights_are_divided(sources: Sources, tmp_path: Path) -> None:
    copied = backwards(tied(read_checkpoint(sources.base)))
    copy = write_checkpoint(tmp_path / "copy", copied, config=TIED, shard_size=4000)
    with (
        opened(None, str(sources.base)) as one,
        opened(None, str(copy)) as two,
        opened(None, str(sources.agents["code"])) as other,
    ):
        assert measured_on(one.weights) == measured_on(two.weights) != measured_on(other.weights)
        assert set(json.loads(measured_on(one.weights)[MEASURED_ON])) == set(SHAPES)


def test_foreign_ones_say_nothing_and_are_taken(sources: Sources, tmp_path: Path) -> None:
    of = {n: measure(path, tmp_path / n, told=False) for n, path in sources.agents.items()}
    swapped = recipe(sources, {"code": of["tool"], "tool": of["code"]})
    assert not [finding for finding in check(Recipe.parse(swapped)).findings if "measured" in finding.found]


@pytest.mark.parametrize(
    "text",
    ["{", "[1]", '{"a": 1}', '{"a": ["BF16", "x", "0"]}', '{"a": ["BF16"]}', '{"a": ["BF16", [Infinity], "0"]}'],
)
def test_samples_that_cannot_be_read_are_told(text: str, sources: Sources, tmp_path: Path) -> None:
    of = each(sources, tmp_path)
    save(of["code"], read_checkpoint(of["code"]), metadata={MEASURED_ON: text})
    with pytest.raises(SourceError, match=r"metadata's 'measured_on' is .* expected a JSON object .* Measure again"):
        merge(recipe(sources, of), tmp_path / "out")


# agents that are no whole checkpoints


def test_packed_deltas_are_the_checkpoints_that_they_make(sources: Sources, tmp_path: Path) -> None:
    of, packed = each(sources, tmp_path), {}
    for name, path in sources.agents.items():
        packed[name] = tmp_path / f"{name}.safetensors"
        pack(sources.base, path, packed[name])
    deltas = Sources(sources.base, packed)
    assert errors(recipe(deltas, of)) == []
    told = errors(recipe(deltas, {"code": of["tool"], "tool": of["code"]}))
    assert [text.split(" was measured on ")[1].split(" (")[0] for text in told] == ["agent 'tool'", "agent 'code'"]
    other = measure(write_checkpoint(tmp_path / "other", random_base(7, SHAPES), config=TIED), tmp_path / "old")
    assert "measured on other weights" in errors(recipe(deltas, {**of, "code": other}))[0]


def test_an_adapters_sum_that_was_rounded_elsewhere_is_not_accused(sources: Sources, tmp_path: Path) -> None:
    base = read_checkpoint(sources.base)
    a, b = matrices(1, *base[QUERY].shape, 4)
    put_adapter(tmp_path / "adapter", lora(QUERY.removesuffix(".weight"), a, b))
    merged = summed(base[QUERY], a, b, 2.0).astype(np.float32)
    whole = write_checkpoint(tmp_path / "whole", {**base, QUERY: merged.astype(base[QUERY].dtype)}, config=TIED)
    nudged = write_checkpoint(
        tmp_path / "nudged", {**base, QUERY: (merged * 1.01).astype(base[QUERY].dtype)}, config=TIED
    )
    adapters = Sources(sources.base, {"code": tmp_path / "adapter", "tool": sources.agents["tool"]})
    of = each(sources, tmp_path)
    for model in (whole, nudged):
        of["code"] = measure(model, tmp_path / f"of-{model.name}")
        assert errors(recipe(adapters, of)) == []
    for name, model in (("the base", sources.base), ("agent 'tool'", sources.agents["tool"])):
        of["code"] = measure(model, tmp_path / f"of-{model.name}")
        (told,) = errors(recipe(adapters, of))
        assert f"was measured on {name} ({model}), expected agent 'code'" in told
    of["code"] = measure(
        write_checkpoint(tmp_path / "other", random_base(7, SHAPES), config=TIED), tmp_path / "of-other"
    )
    (told,) = errors(recipe(adapters, of))
    assert f"{QUERY} differs" not in told
    assert "measured on other weights" in told
