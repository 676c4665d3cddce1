"""Folders of parts that trainers leave, as agents and as the base: merged as the whole weights would be."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

import agentmerge
from agentmerge.testing import write_checkpoint
from tests.files.parts import COPIES, put_distcp, put_ranks, rows
from tests.symptoms.conftest import BF16, CONFIG, EMBED, HEAD, MLP, Case, model, ram, same, tokenizer, trained, words

if TYPE_CHECKING:
    from pathlib import Path

    from agentmerge.tensors import Array

MESH = np.arange(4).reshape(2, 2)


def masters(base: dict[str, Array], seed: int) -> dict[str, Array]:
    """What a trainer keeps in float32: every element of a bfloat16 model moved, most by less than it can show."""
    rng = np.random.default_rng(seed)
    return {n: array.astype(np.float32) + rng.normal(0, 1e-3, array.shape).astype(np.float32) for n, array in
            base.items()}  # fmt: skip


def put_verl(folder: Path, tensors: dict[str, Array], config: dict[str, Any] | None = None) -> Path:
    """An actor's folder as verl leaves it."""
    put_ranks(folder, tensors, (COPIES, rows(0)), MESH)
    (folder / "fsdp_config.json").write_text(json.dumps({"FSDP_version": 2, "world_size": 4}))
    (folder / "optim_world_size_4_rank_0.pt").write_bytes(b"no archive")
    home = folder / "huggingface"
    home.mkdir(exist_ok=True)
    (home / "config.json").write_text(json.dumps(CONFIG if config is None else config))
    return folder


def put_dcp(folder: Path, tensors: dict[str, Array]) -> Path:
    """A checkpoint of torch's, as Accelerate and torchtitan nest it, with an optimizer's state."""
    paths: dict[str, tuple[str | int, ...]] = {f"app.model.{name}": ("app", "model", name) for name in tensors}
    state = {f"app.model.{name}": array for name, array in tensors.items()}
    paths["app.optim.m"], state["app.optim.m"] = ("app", "optim", "m"), np.ones(3, np.float32)
    return put_distcp(folder, state, paths=paths)


PUT = {"verl": put_verl, "torch": put_dcp}


@pytest.mark.parametrize("kind", PUT)
@pytest.mark.parametrize("way", ["base_dtype", "exact"])
def test_parts_merge_like_the_whole_weights(case: Case, kind: str, way: str) -> None:
    base = model()
    code = masters(base, 1)
    case.put("base", base)
    case.put("tool", trained(base, 2))
    agents = {"tool": case.agents["tool"]}
    source = str(PUT[kind](case.folder / "parts", code))
    record = case.merge(agents={**agents, "code": {"source": source, "materialize": way}})
    made, changed = case.result, record.survey.agents["code"].changed
    saved = {name: array.astype(BF16) for name, array in code.items()} if way == "base_dtype" else code
    whole = write_checkpoint(case.folder / "whole", saved, config=CONFIG)
    record = case.merge(agents={**agents, "code": str(whole)})
    assert record.survey.agents["code"].changed == changed
    for name, array in case.result.items():
        assert array.tobytes() == made[name].tobytes(), name
    share = changed / sum(array.size for array in base.values())
    assert share > 0.98 if way == "exact" else share < 0.9


def test_float32_parts_of_a_float32_base_are_what_they_are(case: Case) -> None:
    base = {name: array.astype(np.float32) for name, array in model().items()}
    code = masters(base, 1)
    case.put("base", base)
    case.agents["code"] = str(put_verl(case.folder / "code", code))
    case.merge()
    for name, array in case.result.items():
        same(array, ram(base[name], code[name]))


@pytest.mark.parametrize("kind", PUT)
def test_parts_as_the_base_bring_their_config_and_no_parts_into_the_output(case: Case, kind: str) -> None:
    base = model()
    PUT[kind](case.folder / "base", base)
    if kind == "torch":
        (case.folder / "base" / "config.json").write_text(json.dumps(CONFIG))
    code = case.put("code", trained(base, 1))
    case.merge()
    for name, array in case.result.items():
        same(array, trained(base, 1)[name])
    assert case.config["model_type"] == "llama"
    assert {path.name for path in case.out.iterdir()} == {
        "README.md", "config.json", "merge_record.json", "model.safetensors",
    }  # fmt: skip
    assert code.exists()


@pytest.mark.parametrize(
    ("kind", "below"), [("verl", "global_step_5/actor"), ("torch", "checkpoint-7/pytorch_model_fsdp_0")]
)
def test_the_folder_above_the_parts_is_the_checkpoint_of_its_trainer(case: Case, kind: str, below: str) -> None:
    base, code = model(), trained(model(), 1)
    case.put("base", base)
    step = case.folder / below.partition("/")[0]
    PUT[kind](case.folder / below, code)
    (step / "data.pt").write_bytes(b"the loader's")
    (step / "critic").mkdir()
    case.agents["code"] = str(step)
    case.merge()
    for name, array in case.result.items():
        same(array, code[name])


def test_a_run_of_several_steps_names_the_last(case: Case) -> None:
    case.put("base", model())
    for step in (5, 10):
        put_verl(case.folder / "run" / f"global_step_{step}" / "actor", trained(model(), step))
    case.agents["code"] = str(case.folder / "run")
    message = case.refused_early("Give the path of one of the checkpoints below it")
    assert f"below it: {case.folder / 'run' / 'global_step_10'}, " in message


def test_an_agents_tokenizer_and_config_are_those_that_verl_put_below(case: Case) -> None:
    base = model()
    case.put("base", base, **tokenizer(words(12)))
    code = put_verl(case.folder / "code", trained(base, 1), {**CONFIG, "rope_theta": 5.0})
    case.agents["code"] = str(code)
    case.refused_early("agent 'code' has rope theta 5.0")
    put_verl(case.folder / "code", trained(base, 1))
    for name, content in tokenizer(words(13)).items():
        (code / "huggingface" / name).write_bytes(content)
    case.merge(inputs={"tokenizer_from": "code"})
    assert (case.out / "tokenizer.json").read_bytes() == tokenizer(words(13))["tokenizer.json"]
    text = "\n".join(str(finding.found) for finding in case.check().findings)
    assert f"its config and tokenizer are those of {code / 'huggingface'}" in text


def test_parts_without_a_config_are_said_to_have_the_bases(case: Case) -> None:
    case.put("base", model())
    case.agents["code"] = str(put_dcp(case.folder / "code", trained(model(), 1)))
    told = case.merge().warnings
    assert any(
        "no config.json beside the parts: its config and tokenizer are taken to be the base's" in t for t in told
    )
    assert any("tensors of the optimizer and of other state, left out: 1" in text for text in told)


def test_what_a_trainer_keeps_in_float32_is_told_with_the_other_way_to_read_it(case: Case) -> None:
    case.put("base", model())
    case.agents["code"] = str(put_verl(case.folder / "code", masters(model(), 1)))
    text = "\n".join(f"{finding.found} {finding.todo}" for finding in case.check().findings)
    assert "5 tensors are stored in a wider dtype than the base's, read in the base's (BF16)" in text
    assert "`materialize: exact` reads them the other way" in text


def test_names_of_wrappers_and_a_tied_head_among_the_parts(case: Case) -> None:
    base = {name: array for name, array in model().items() if name != HEAD}
    case.put("base", base, {"tie_word_embeddings": True})
    code = trained(base, 1)
    wrapped = {f"_fsdp_wrapped_module.{name}": array for name, array in code.items()}
    put_verl(case.folder / "code", {**wrapped, "_fsdp_wrapped_module.lm_head.weight": code[EMBED]},
             {**CONFIG, "tie_word_embeddings": True})  # fmt: skip
    case.agents["code"] = str(case.folder / "code")
    case.merge()
    for name, array in case.result.items():
        same(array, code[name])


def test_lora_parts_are_refused_as_what_they_are(case: Case) -> None:
    base = model()
    case.put("base", base)
    lora = {"base_model.model." + MLP.replace(".weight", ".lora_A.default.weight"): np.ones((2, 12), np.float32)}
    case.agents["code"] = str(put_verl(case.folder / "code", {**base, **lora}))
    case.refused_early("a LoRA adapter that is not merged into its weights", "merge_and_unload")


def test_a_number_that_is_not_finite_names_the_agent(case: Case) -> None:
    code = masters(model(), 1)
    code[MLP][3, 4] = np.nan
    case.put("base", model())
    case.agents["code"] = str(put_verl(case.folder / "code", code))
    case.refused("NaN", "code", MLP)


def test_missing_ranks_stop_a_merge_before_anything_is_read(case: Case) -> None:
    case.put("base", model())
    code = put_ranks(case.folder / "code", trained(model(), 1), mesh=np.arange(4))
    (code / "model_world_size_4_rank_2.pt").unlink()
    case.agents["code"] = str(code)
    case.refused_early("the files of ranks 2 of 4 are not there, expected every rank")


def test_the_output_may_not_be_what_is_read(case: Case) -> None:
    case.put("base", model())
    case.agents["code"] = str(put_verl(case.folder / "code", trained(model(), 1)))
    for out in (case.folder / "code", case.folder / "code" / "huggingface"):
        with pytest.raises(agentmerge.MergeError, match="the source of agent 'code'"):
            agentmerge.merge(case.recipe(), out, overwrite=True)
    assert (case.folder / "code" / "model_world_size_4_rank_0.pt").exists()


def test_a_survey_of_numbers_read_the_other_way_is_refused(case: Case) -> None:
    case.put("base", model())
    source = str(put_verl(case.folder / "code", masters(model(), 1)))
    ways = {way: {"code": {"source": source, "materialize": way}} for way in ("base_dtype", "exact")}
    saved = case.folder / "survey.json"
    agentmerge.probe(case.recipe("ram_plus", agents=ways["exact"])).save(saved)
    run = {"survey": str(saved)}
    case.merge("ram_plus", agents=ways["exact"], run=run)
    case.refused("'code' was", "or its files changed since", method="ram_plus", agents=ways["base_dtype"], run=run)


@pytest.mark.parametrize("kind", PUT)
def test_whole_weights_beside_parts_are_read_and_the_parts_named(case: Case, kind: str) -> None:
    case.put("base", model())
    PUT[kind](case.folder / "code", trained(model(), 1))
    case.put("code", trained(model(), 2))
    told = "\n".join(case.merge().warnings)
    assert "also has the parts that a trainer left, ignored: " in told
    for name, array in case.result.items():
        same(array, trained(model(), 2)[name])
