"""The whole way from a recipe to a checkpoint: what is read, merged, copied, told and recorded."""

from __future__ import annotations

import json
import os
from typing import TYPE_CHECKING, Any

import ml_dtypes
import numpy as np
import pytest
import safetensors.numpy
from huggingface_hub import ModelCard

from agentmerge import Recipe, merge, probe
from agentmerge.engine.preflight import planned
from agentmerge.errors import SurveyError
from agentmerge.testing import (
    Sources,
    assert_same_bits,
    assert_same_tensors,
    make_agents,
    random_base,
    read_checkpoint,
    write_checkpoint,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from agentmerge.tensors import Array

pytestmark = pytest.mark.usefixtures("unsynced")
BF16 = ml_dtypes.bfloat16
NORM = "model.norm.weight"
MLP = "model.layers.0.mlp.up_proj.weight"


def edit(folder: Path, change: Callable[[dict[str, Array]], object]) -> None:
    tensors = read_checkpoint(folder)
    change(tensors)
    write_checkpoint(folder, tensors)


def merged(sources: Sources, out: Path, method: Any = "ram+", **sections: Any) -> dict[str, Array]:
    merge(sources.recipe(method, **sections), out)
    return read_checkpoint(out)


# missing, extra, skip, take


def test_a_tensor_that_an_agent_lacks_counts_as_unchanged_by_it(tiny: Sources, tmp_path: Path) -> None:
    base = read_checkpoint(tiny.base)[NORM]
    edit(tiny.agents["tool"], lambda tensors: tensors.update({NORM: base}))
    expected = merged(tiny, tmp_path / "expected")
    edit(tiny.agents["tool"], lambda tensors: tensors.pop(NORM))
    assert_same_tensors(merged(tiny, tmp_path / "out", inputs={"missing": "base"}), expected)


def test_a_skipped_agent_counts_as_unchanged_there(tiny: Sources, tmp_path: Path) -> None:
    found = merged(tiny, tmp_path / "out", rules=[{"tensors": "*norm*", "skip": "tool"}])
    base = read_checkpoint(tiny.base)[NORM]
    edit(tiny.agents["tool"], lambda tensors: tensors.update({NORM: base}))
    assert_same_tensors(found, merged(tiny, tmp_path / "expected"))


def test_a_tensor_that_the_base_lacks_is_left_out_and_reported(tiny: Sources, tmp_path: Path) -> None:
    expected = merged(tiny, tmp_path / "expected")
    edit(tiny.agents["tool"], lambda tensors: tensors.update(value_head=np.ones(3, np.float32)))
    record = merge(tiny.recipe("ram+", inputs={"extra": "ignore"}), tmp_path / "out")
    assert_same_tensors(read_checkpoint(tmp_path / "out"), expected)
    assert "agent 'tool': 1 tensors that the base lacks are left out" in record.warnings


def test_taken_tensors_are_the_sources_own_bytes_and_recorded(tiny: Sources, tmp_path: Path) -> None:
    rules = [{"tensors": "*norm*", "take": "base"}, {"tensors": "lm_head*", "take": "tool"}]
    record = merge(tiny.recipe("ram+", rules=rules), tmp_path / "out")
    found = read_checkpoint(tmp_path / "out")
    assert_same_bits(found[NORM], read_checkpoint(tiny.base)[NORM], NORM)
    assert_same_bits(found["lm_head.weight"], read_checkpoint(tiny.agents["tool"])["lm_head.weight"], "head")
    assert {t.name: t.reason for t in record.tensors.copied} == {
        NORM: "rules.0 takes it from 'base'",
        "lm_head.weight": "rules.1 takes it from 'tool'",
    }
    assert record.tensors.merged == 3
    assert record.survey.elements == sum(a.size for n, a in found.items() if n not in (NORM, "lm_head.weight"))


def test_an_integer_tensor_may_be_taken_from_an_agent(tmp_path: Path) -> None:
    sources = make_agents(tmp_path / "in", base={**random_base(0), "ids": np.arange(5)})
    edit(sources.agents["tool"], lambda tensors: tensors["ids"].fill(9))
    edit(sources.agents["code"], lambda tensors: tensors.update(ids=np.arange(3)))
    found = merged(sources, tmp_path / "out", rules=[{"tensors": "ids", "take": "tool"}])
    np.testing.assert_array_equal(found["ids"], [9] * 5)
    found = merged(sources, tmp_path / "other", rules=[{"tensors": "ids", "take": "base"}])
    np.testing.assert_array_equal(found["ids"], np.arange(5))


def test_a_rule_with_its_own_threshold_and_rescale_holds_for_its_tensors_only(tiny: Sources, tmp_path: Path) -> None:
    plain = merged(tiny, tmp_path / "plain", output={"dtype": "float32"})
    found = merged(tiny, tmp_path / "out", rules=[{"tensors": "*.mlp.*", "rescale": 0.9}], output={"dtype": "float32"})
    assert not np.array_equal(found[MLP], plain[MLP])
    for name in set(plain) - {MLP}:
        assert_same_bits(found[name], plain[name], name)


# dtypes and rounding


@pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16"])
@pytest.mark.parametrize("spelling", ["dtype", "torch_dtype"])
def test_tensors_and_config_have_the_wanted_dtype_in_both_spellings(tmp_path: Path, dtype: str, spelling: str) -> None:
    config = {"model_type": "tiny", spelling: "bfloat16", "text_config": {spelling: "bfloat16"}}
    sources = make_agents(tmp_path / "in", config=config)
    found = merged(sources, tmp_path / "out", output={"dtype": dtype})
    assert {str(array.dtype) for array in found.values()} == {dtype}
    written = json.loads((tmp_path / "out" / "config.json").read_text())
    assert written["dtype"] == written["torch_dtype"] == dtype
    assert written["text_config"] == {spelling: dtype}


def test_wider_outputs_round_to_the_narrower_one(tiny: Sources, tmp_path: Path) -> None:
    wide = merged(tiny, tmp_path / "wide", output={"dtype": "float32"})
    narrow = merged(tiny, tmp_path / "narrow")
    for name, array in narrow.items():
        assert_same_bits(array, wide[name].astype(BF16), name)


def test_every_tensor_keeps_its_own_dtype_by_default(tmp_path: Path) -> None:
    dtypes = {NORM: "F32", MLP: "F16", "lm_head.weight": "F64"}
    sources = make_agents(tmp_path / "in", base=random_base(0, dtypes=dtypes))
    found = merged(sources, tmp_path / "out")
    assert {name: array.dtype for name, array in found.items()} == {
        name: array.dtype for name, array in read_checkpoint(sources.base).items()
    }


def test_agents_may_be_stored_wider_than_the_base(tiny: Sources, tmp_path: Path) -> None:
    expected = merged(tiny, tmp_path / "expected")
    for name, dtype in (("code", np.float32), ("tool", np.float64)):
        tensors = {n: a.astype(dtype) for n, a in read_checkpoint(tiny.agents[name]).items()}
        write_checkpoint(tiny.agents[name], tensors)
    assert_same_tensors(merged(tiny, tmp_path / "out"), expected)


def test_float64_keeps_the_bases_own_bits_where_nothing_changed(tmp_path: Path) -> None:
    base = {"w": np.array([0.1, 0.2, 0.3, -0.0]), "v": np.array([1 / 3])}
    agent = {"w": np.array([0.1, 0.5, 0.3, -0.0]), "v": np.array([1 / 3])}
    folders = [write_checkpoint(tmp_path / n, t) for n, t in (("base", base), ("a", agent))]
    found = merged(Sources(folders[0], {"a": folders[1]}), tmp_path / "out", "ram")
    assert_same_bits(found["w"][[0, 2, 3]], base["w"][[0, 2, 3]], "w")
    assert found["w"][1] == np.float64(np.float32(0.5))
    assert_same_bits(found["v"], base["v"], "v")


def test_stochastic_rounding_is_the_same_for_a_seed_and_another_for_another(tiny: Sources, tmp_path: Path) -> None:
    found = [
        merged(tiny, tmp_path / f"{i}", output={"rounding": "stochastic"}, seed=seed, run={"block_size": block})
        for i, (seed, block) in enumerate([(0, 4096), (0, 10**6), (1, 4096)])
    ]
    assert_same_tensors(found[0], found[1])
    assert any(found[0][name].tobytes() != found[2][name].tobytes() for name in found[0])


# what lies beside the weights


def test_side_files_are_the_bases_and_the_tokenizer_that_of_the_donor(tiny: Sources, tmp_path: Path) -> None:
    of = {name: json.dumps({"model": {"vocab": {"a": 0}}, "version": name}) for name in ("base", "tool")}
    (tiny.base / "tokenizer.json").write_text(of["base"])
    (tiny.base / "modeling_own.py").write_bytes(b"import torch\r\n")
    (tiny.agents["tool"] / "tokenizer.json").write_text(of["tool"])
    merge(tiny.recipe("ram"), tmp_path / "out")
    merge(tiny.recipe("ram", inputs={"tokenizer_from": "tool"}), tmp_path / "donor")
    assert (tmp_path / "out" / "tokenizer.json").read_text() == of["base"]
    assert (tmp_path / "donor" / "tokenizer.json").read_text() == of["tool"]
    for out in ("out", "donor"):
        assert (tmp_path / out / "modeling_own.py").read_bytes() == b"import torch\r\n"


def test_the_model_card_is_one_that_the_hub_reads(tiny: Sources, tmp_path: Path) -> None:
    (tiny.base / "README.md").write_text("---\nlicense: apache-2.0\nlanguage: [en]\n---\n# Base\n")
    merge(tiny.recipe("ram"), tmp_path / "out")
    card = ModelCard.load(tmp_path / "out" / "README.md")
    assert card.data.tags == ["merge", "agentmerge"]
    assert card.data.license == "apache-2.0"
    assert card.data.library_name == "transformers"


def test_how_the_work_was_done_shows_in_the_record_only(tiny: Sources, tmp_path: Path) -> None:
    runs = [{"workers": 1, "block_size": 4096}, {"workers": 3, "block_size": 10**6}]
    for i, run in enumerate(runs):
        merge(tiny.recipe("ram+", run=run), tmp_path / str(i))
    names = {path.name for path in (tmp_path / "0").iterdir()}
    assert names == {path.name for path in (tmp_path / "1").iterdir()}
    for name in names - {"merge_record.json"}:
        assert (tmp_path / "0" / name).read_bytes() == (tmp_path / "1" / name).read_bytes(), name


def test_the_output_opens_with_safetensors_and_its_index(tiny: Sources, tmp_path: Path) -> None:
    whole = merged(tiny, tmp_path / "one")
    merge(tiny.recipe("ram+", output={"shard_size": "9KB"}), tmp_path / "many")
    index = json.loads((tmp_path / "many" / "model.safetensors.index.json").read_text())
    assert index["metadata"]["total_size"] == sum(array.nbytes for array in whole.values())
    for name, array in whole.items():
        shard = safetensors.numpy.load_file(tmp_path / "many" / index["weight_map"][name])
        assert_same_bits(shard[name], array, name)
    assert not (tmp_path / "one" / "model.safetensors.index.json").exists()
    with safetensors.safe_open(tmp_path / "one" / "model.safetensors", "np") as file:
        assert file.metadata()["format"] == "pt"


# the record, by hand


def test_counts_lost_changes_and_surviving_rescales_by_hand(tmp_path: Path) -> None:
    """One tensor around 1, where a bfloat16 step up is 2^-7; scale 1.5 for both agents (rho 1, rescale 0.5)."""
    step = 2.0**-7
    base = np.ones(8, BF16)
    a = np.array([1 + step, 1 + 2 * step, 1, 1, 1 + 4 * step, 1 - step / 2, 1, 1], np.float32)
    b = np.array([1, 1, 1 + step / 2, 1, 1 + 4 * step, 1 + step / 2, 1 + 1e-6, 1], np.float32)
    folders = {
        "base": write_checkpoint(tmp_path / "base", {"w": base}),
        "a": write_checkpoint(tmp_path / "a", {"w": a}),
        "b": write_checkpoint(tmp_path / "b", {"w": b}),
    }
    sources = Sources(folders["base"], {"a": folders["a"], "b": folders["b"]})
    record = merge(sources.recipe({"name": "ram+", "rescale": 0.5, "clip": 1.0}), tmp_path / "out")
    agents, rounding = record.survey.agents, record.rounding
    assert record.survey.elements == 8
    assert (agents["a"].changed, agents["a"].unique, agents["a"].shared) == (4, 2, 2)
    assert (agents["b"].changed, agents["b"].unique, agents["b"].shared) == (3, 1, 2)
    assert agents["a"].changed_by_exactly == [2, 2]
    assert agents["a"].scale == agents["b"].scale == 1.5  # rho 1 and 2, clipped at 1
    found = read_checkpoint(tmp_path / "out")["w"].astype(np.float32)
    # a alone: 1.5 steps -> 2 steps (tie to even); 3 steps. b alone: 0.75 steps -> 1 step.
    # both: 4 steps; (-1/2 + 1/2) / 2 = 0: merged to the base itself, so nothing is lost there.
    np.testing.assert_array_equal(found, [1 + 2 * step, 1 + 3 * step, 1 + step, 1, 1 + 4 * step, 1, 1, 1])
    assert rounding["a"].changed_lost == 0.0
    assert rounding["a"].rescale_survived == 1.0  # 2 and 3 steps, not 1 and 2
    assert rounding["b"].rescale_survived == 1.0  # half a step alone would be stored as none
    assert rounding["a"].below_threshold == 0.0
    assert rounding["b"].below_threshold == 0.25  # 1e-6 differs and is no change
    plain = merge(sources.recipe("ram"), tmp_path / "ram")
    assert plain.rounding["b"].changed_lost == pytest.approx(1 / 3)  # half a step alone rounds back to the base
    assert plain.rounding["a"].changed_lost == 0.0
    assert plain.rounding["a"].rescale_survived is None


def test_a_rescale_that_rounds_away_is_told(tiny: Sources, tmp_path: Path) -> None:
    """The reason for the record: 1.1 times a step or two is the same step or two in bfloat16."""
    narrow = merge(tiny.recipe({"name": "ram+", "rescale": 0.01}), tmp_path / "narrow").rounding
    wide = merge(
        tiny.recipe({"name": "ram+", "rescale": 0.01}, output={"dtype": "float32"}), tmp_path / "wide"
    ).rounding
    for name in narrow:
        assert narrow[name].rescale_survived == 0.0
        assert wide[name].rescale_survived == pytest.approx(1.0, abs=0.01)


def test_an_agent_with_nothing_to_share_out_has_null(tmp_path: Path) -> None:
    base = {"w": np.zeros(4, np.float32)}
    a = {"w": np.array([1, 0, 0, 0], np.float32)}
    folders = [write_checkpoint(tmp_path / n, t) for n, t in (("base", base), ("a", a), ("b", base))]
    sources = Sources(folders[0], {"a": folders[1], "b": folders[2]})
    record = merge(sources.recipe("ram+", inputs={"unchanged": "allow"}), tmp_path / "out")
    assert record.rounding["b"].model_dump() == dict.fromkeys(("changed_lost", "below_threshold", "rescale_survived"))
    assert record.survey.agents["b"].overlap_unique_ratio == 0.0


def test_an_agent_without_a_unique_element_has_no_finite_ratio(tmp_path: Path) -> None:
    base = {"w": np.zeros(4, np.float32)}
    a, b = {"w": np.array([1, 0, 0, 0], "f4")}, {"w": np.array([1, 1, 0, 0], "f4")}
    folders = [write_checkpoint(tmp_path / n, t) for n, t in (("base", base), ("a", a), ("b", b))]
    record = merge(Sources(folders[0], {"a": folders[1], "b": folders[2]}).recipe("ram+"), tmp_path / "out")
    assert record.survey.agents["a"].overlap_unique_ratio is None
    assert record.survey.agents["a"].scale == pytest.approx(1.2)


def test_the_record_tells_what_was_written(tiny: Sources, tmp_path: Path) -> None:
    record = merge(tiny.recipe("ram", output={"shard_size": 9000, "rounding": "stochastic"}), tmp_path / "out")
    shards = list((tmp_path / "out").glob("*.safetensors"))
    assert record.output.shards == len(shards)
    assert record.output.bytes == sum(path.stat().st_size for path in shards)
    assert (record.output.dtype, record.output.rounding) == ("bfloat16", "stochastic")
    assert record.tensors.merged == 5
    assert record.timing.folds == 0
    assert merge(tiny.recipe("ram+"), tmp_path / "plus").timing.folds == 1


# a saved survey


@pytest.fixture
def saved(tiny: Sources, tmp_path: Path) -> Path:
    probe(tiny.recipe("ram+")).save(tmp_path / "survey.json")
    return tmp_path / "survey.json"


@pytest.mark.parametrize("method", ["ram", "ram+", "ram+s", {"name": "ram+", "scope": "tensor"}])
def test_a_saved_survey_gives_the_same_bytes_and_record_without_a_fold(
    method: Any, tiny: Sources, saved: Path, tmp_path: Path
) -> None:
    plain = merge(tiny.recipe(method), tmp_path / "plain")
    record = merge(tiny.recipe(method, run={"survey": str(saved)}), tmp_path / "out")
    assert_same_tensors(read_checkpoint(tmp_path / "out"), read_checkpoint(tmp_path / "plain"))
    assert record.timing.folds == 0
    assert record.survey == plain.survey
    assert record.rounding == plain.rounding


def test_a_survey_of_another_threshold_is_folded_again(tiny: Sources, saved: Path, tmp_path: Path) -> None:
    method = {"name": "ram+", "threshold": 1e-4}
    expected = merged(tiny, tmp_path / "plain", method)
    record = merge(tiny.recipe(method, run={"survey": str(saved)}), tmp_path / "out")
    assert record.timing.folds == 1
    assert_same_tensors(read_checkpoint(tmp_path / "out"), expected)


def test_a_survey_serves_rules_with_settings_of_their_own(tiny: Sources, saved: Path, tmp_path: Path) -> None:
    rules = [{"tensors": "*.mlp.*", "rescale": 0.5}, {"tensors": "*norm*", "threshold": 1e-3}]
    expected = merged(tiny, tmp_path / "plain", rules=rules)
    found = merged(tiny, tmp_path / "out", rules=rules, run={"survey": str(saved)})
    assert_same_tensors(found, expected)


def refuse(recipe: dict[str, Any], out: Path, message: str) -> None:
    with pytest.raises(SurveyError, match=message):
        merge(recipe, out)
    assert not out.exists()


def test_a_survey_is_refused_when_a_source_changed(tiny: Sources, saved: Path, tmp_path: Path) -> None:
    (tiny.agents["tool"] / "model.safetensors").touch()
    refuse(tiny.recipe("ram+", run={"survey": str(saved)}), tmp_path / "out", "'tool' was .* its files changed since")


@pytest.mark.parametrize("who", ["base", "tool"])
@pytest.mark.parametrize("method", ["ram", "ram+"])
def test_a_survey_is_refused_when_only_the_content_changed_and_size_and_time_were_put_back(
    who: str, method: str, tiny: Sources, saved: Path, tmp_path: Path
) -> None:
    path = (tiny.base if who == "base" else tiny.agents[who]) / "model.safetensors"
    state, content = path.stat(), bytearray(path.read_bytes())
    content[-1000] ^= 1
    path.write_bytes(content)
    os.utime(path, ns=(state.st_atime_ns, state.st_mtime_ns))
    recipe = tiny.recipe(method, run={"survey": str(saved)})
    refuse(recipe, tmp_path / "out", f"the data of {who} changed since this survey was made")
    assert (tmp_path / ".out.agentmerge" / ".refused.txt").exists()


@pytest.mark.parametrize(
    "rules", [[{"tensors": "*norm*", "take": "base"}], [{"tensors": "*norm*", "skip": "tool"}]], ids=str
)
def test_a_survey_is_refused_when_the_rules_merge_something_else(
    rules: list[dict[str, Any]], tiny: Sources, saved: Path, tmp_path: Path
) -> None:
    recipe = tiny.recipe("ram+", rules=rules, run={"survey": str(saved)})
    refuse(recipe, tmp_path / "out", "under rules that merge other tensors or agents")


def test_a_survey_is_refused_for_other_agents(tiny: Sources, saved: Path, tmp_path: Path) -> None:
    two = Sources(tiny.base, {name: tiny.agents[name] for name in ("code", "tool")})
    refuse(
        two.recipe("ram+", run={"survey": str(saved)}), tmp_path / "out", r"is of \['base', 'code', 'memory', 'tool'\]"
    )
    renamed = Sources(tiny.base, {**two.agents, "other": tiny.agents["memory"]})
    refuse(renamed.recipe("ram+", run={"survey": str(saved)}), tmp_path / "out", "Probe again")
    swapped = Sources(
        tiny.base, {"code": tiny.agents["tool"], "tool": tiny.agents["code"], "memory": tiny.agents["memory"]}
    )
    refuse(swapped.recipe("ram+", run={"survey": str(saved)}), tmp_path / "out", "'code' was")


def broken() -> Iterator[tuple[str, Callable[[dict[str, Any]], object], str]]:
    yield "no answers", lambda data: data.update(answers={}), "not what a probe writes"
    yield (
        "other answers",
        lambda data: data.update(answers=dict.fromkeys(data["answers"], 3)),
        "not what a probe writes",
    )
    yield "no sources", lambda data: data.update(sources={}), "Probe again"
    yield "no scope", lambda data: data.pop("scope"), "not a ProbeRecord: scope"
    yield "sources of another kind", lambda data: data.update(sources={"base": 3}), "not a ProbeRecord"
    yield "one answer short", lambda data: data["answers"].pop("Integrity {}"), "not what a probe writes"


@pytest.mark.parametrize(("change", "message"), [pytest.param(c, m, id=name) for name, c, m in broken()])
def test_a_survey_that_is_none_is_refused(
    change: Callable[[dict[str, Any]], object], message: str, tiny: Sources, saved: Path, tmp_path: Path
) -> None:
    data = json.loads(saved.read_text())
    change(data)
    saved.write_text(json.dumps(data))
    refuse(tiny.recipe("ram+", run={"survey": str(saved)}), tmp_path / "out", message)


def test_a_survey_that_is_not_there_is_told_before_anything_is_written(tiny: Sources, tmp_path: Path) -> None:
    recipe = tiny.recipe("ram+", run={"survey": str(tmp_path / "none.json")})
    refuse(recipe, tmp_path / "out", "no such file")
    assert not (tmp_path / ".out.agentmerge").exists()


# a probe


def test_a_probe_leaves_no_trace(tiny: Sources, tmp_path: Path) -> None:
    before = sorted(tmp_path.rglob("*"))
    probe(tiny.recipe("ram+"))
    assert sorted(tmp_path.rglob("*")) == before


def test_a_probe_holds_every_tensors_own_counts(tiny: Sources) -> None:
    answers = probe(tiny.recipe("ram+")).answers['Overlap {"threshold": 1e-05}']
    tensors = read_checkpoint(tiny.base)
    assert {name: found["elements"] for name, found in answers["tensors"].items()} == {
        name: array.size for name, array in tensors.items()
    }
    total = np.sum([np.array(found["exactly"]) for found in answers["tensors"].values()], axis=0)
    assert total.tolist() == answers["total"]["exactly"]


@pytest.mark.parametrize("workers", [1, 4])
@pytest.mark.parametrize("block_size", [4096, 10**7])
def test_a_probe_does_not_depend_on_how_it_is_run(tiny: Sources, workers: int, block_size: int) -> None:
    expected = probe(tiny.recipe("ram+"))
    found = probe(tiny.recipe("ram+", run={"workers": workers, "block_size": block_size}))
    assert (found.survey, found.answers) == (expected.survey, expected.answers)


def test_the_record_names_the_sources_as_they_were_when_the_merge_began(tiny: Sources, tmp_path: Path) -> None:
    """A config that is edited meanwhile is not what the bytes were made from."""
    config = tiny.agents["tool"] / "config.json"
    before = config.read_bytes()

    class Editing:
        def begin(self, phase: str, total: int, **_: float) -> None:
            if phase == "map":
                config.write_bytes(before.replace(b"tiny", b"other"))

        def advance(self, amount: int, **_: float) -> None:
            pass

    with planned(Recipe.parse(tiny.recipe("ram"))) as plan:
        expected = plan.identities()
    assert merge(tiny.recipe("ram"), tmp_path / "out", watch=Editing()).sources == expected
