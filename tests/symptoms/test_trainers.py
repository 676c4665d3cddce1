"""Folders that trainers leave: adapters, parts of a model, one folder too high. The advice saves the training."""

from __future__ import annotations

import numpy as np
import pytest

from agentmerge.testing import write_checkpoint
from tests.symptoms.conftest import BF16, CONFIG, MLP, Case, model, trained

LOSES = ("--missing base", "take: base", "--extra ignore")


def folder_with(case: Case, *names: str) -> None:
    """A base, and an agent whose folder holds these files and no safetensors."""
    case.put("base", model())
    for name in names:
        path = case.folder / "code" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(b"PK\x03\x04")
    case.agents["code"] = str(case.folder / "code")


ZERO = "zero_pp_rank_0_mp_rank_00_model_states.pt"
STATES = {
    "DeepSpeed": ([f"global_step7/{ZERO}", "latest"], "zero_to_fp32.py"),
    "DeepSpeed, one step": ([f"bf16_{ZERO}", "mp_rank_00_model_states.pt"], "zero_to_fp32.py"),
    "Megatron": (["iter_0000100/mp_rank_00/model_optim_rng.pt"], "convert_checkpoints.py export"),
    "Megatron, distributed": (["__0_0.distcp", "common.pt", "metadata.json"], "convert_checkpoints.py export"),
    "Megatron by verl": (["actor/dist_ckpt/__0_0.distcp", "actor/dist_ckpt/common.pt"], "code/actor --target_dir DIR`"),
    "tensor parallel": (["model_tp_rank_0.pt", "model_tp_rank_1.pt"], "one file per process"),
    "Meta": (["consolidated.00.pth", "consolidated.01.pth"], "convert_llama_weights_to_hf.py"),
    "adapter": (["adapter_model.pt", "adapter_config.json"], "merge_and_unload"),
    "adapter, one folder above": (["lora_model/adapter_model.safetensors"], "merge_and_unload"),
    "adapter of another kind": (["adapters.safetensors", "adapter_config.json"], "merge_and_unload"),
}


@pytest.mark.parametrize("state", STATES)
def test_the_state_of_a_trainer_is_told_with_its_converter(case: Case, state: str) -> None:
    names, advice = STATES[state]
    folder_with(case, *names)
    message = case.refused_early(advice)
    assert "save_pretrained" not in message or "adapter" in state or "tensor" in state
    assert not any(word in message for word in LOSES)


@pytest.mark.parametrize(
    ("name", "advice"),
    [
        ("adapter_model.bin", "merge_and_unload"),
        ("model_world_size_2_rank_0.pt", "Give the folder, which is read as a whole: "),
        ("__0_0.distcp", "Give the folder, which is read as a whole: "),
    ],
)
def test_one_such_file_is_told_the_same(case: Case, name: str, advice: str) -> None:
    folder_with(case, name)
    case.agents["code"] = str(case.folder / "code" / name)
    case.refused_early(advice)


def test_the_config_folder_that_verl_writes_beside_its_parts_leads_to_the_parts(case: Case) -> None:
    folder_with(case, "actor/model_world_size_1_rank_0.pt", "actor/huggingface/config.json")
    case.agents["code"] = str(case.folder / "code" / "actor" / "huggingface")
    case.refused_early(f"Give the folder, which is read as a whole: {case.folder / 'code' / 'actor'}")


def test_an_adapter_beside_shards_without_an_index_is_named(case: Case) -> None:
    folder_with(
        case, "adapter_model.safetensors", "model-00001-of-00002.safetensors", "model-00002-of-00002.safetensors"
    )
    case.refused_early("a LoRA adapter (adapter_model.safetensors)", "merge_and_unload")


def test_an_adapter_beside_whole_weights_is_a_warning_that_says_where_the_training_may_be(case: Case) -> None:
    case.put("base", model())
    case.put("code", trained(model(), 1), **{"adapter_model.safetensors": b"", "adapter_config.json": b"{}"})
    (warning,) = case.merge().warnings
    assert "also has a LoRA adapter, ignored: adapter_model.safetensors; if the training is in it" in warning


@pytest.mark.parametrize(
    "names",
    [
        ["base_model.model.{}.lora_A.weight", "base_model.model.{}.lora_B.weight"],
        ["{}.base_layer.weight", "{}.lora_A.default.weight"],
        ["{}.lora_magnitude_vector.default.weight"],
        ["{}.modules_to_save.default.weight"],
    ],
)
@pytest.mark.parametrize("inputs", [{}, {"missing": "base", "extra": "ignore"}])
def test_lora_matrices_in_a_full_folder_are_no_extra_tensors(case: Case, names, inputs) -> None:
    base = model()
    lora = {name.format("model.layers.0.mlp.up_proj"): np.ones((2, 12), BF16) for name in names}
    case.put("base", base)
    case.put("code", {**trained(base, 1), **lora})
    message = case.refused_early(
        "a LoRA adapter that is not merged into its weights", "merge_and_unload", inputs=inputs
    )
    assert not any(word in message for word in LOSES)


def test_adapters_that_are_part_of_the_model_merge_like_any_tensor(case: Case) -> None:
    """Phi-4-multimodal comes with base_layer and lora_A.vision in base and agents alike."""
    base = {**model(), "model.layers.0.mlp.up_proj.lora_A.vision.weight": np.ones((2, 12), BF16)}
    case.put("base", base)
    case.put("code", trained(base, 1))
    assert case.merge().tensors.merged == len(base)


@pytest.mark.parametrize("who", ["base", "code", "both"])
def test_the_empty_tensors_of_zero_3_are_no_other_shape(case: Case, who: str) -> None:
    for name, tensors in (("base", model()), ("code", trained(model(), 1))):
        case.put(name, {**tensors, MLP: np.zeros(0, BF16)} if who in (name, "both") else tensors)
    message = case.refused_early("without a number, shape [0]", "zero_to_fp32.py")
    assert ("agent 'code' (" in message) == (who == "code")
    assert not any(word in message for word in LOSES)


def test_shards_of_ranks_in_safetensors_are_told_as_such(case: Case) -> None:
    case.put("base", model())
    for rank in (0, 1):
        write_checkpoint(case.folder / "parts", model(), config={})
        (case.folder / "parts" / "model.safetensors").rename(
            case.folder / "parts" / f"model-rank-{rank}-part-0.safetensors"
        )
    case.agents["code"] = str(case.folder / "parts")
    case.refused_early("one file per process", "a part of every tensor")


# the folder above


def deep(case: Case, *places: str) -> None:
    case.put("base", model())
    for i, place in enumerate(places):
        write_checkpoint(case.folder / "code" / place, trained(model(), i + 1), config=CONFIG)
    case.agents["code"] = str(case.folder / "code")


@pytest.mark.parametrize(
    ("places", "first"),
    [
        (["checkpoint-100", "checkpoint-1000", "checkpoint-20"], "checkpoint-1000"),
        (["global_step_5/actor/huggingface", "global_step_10/actor/huggingface"], "global_step_10/actor/huggingface"),
        (["model"], "model"),
        (["run/final/merged_16bit"], "run/final/merged_16bit"),
    ],
)
def test_the_folder_above_a_checkpoint_names_the_ones_below(case: Case, places, first) -> None:
    deep(case, *places)
    message = case.refused_early("Give the path of one of the checkpoints below it")
    assert message.index(str(case.folder / "code" / first)) == min(
        message.index(str(case.folder / "code" / place)) for place in places if place == first or place not in first
    )


def test_the_root_of_a_hub_cache_names_the_snapshot_that_was_fetched_last(case: Case) -> None:
    deep(case, "snapshots/1111", "snapshots/ffff")
    (case.folder / "code" / "refs").mkdir()
    (case.folder / "code" / "refs" / "main").write_text("1111")
    (case.folder / "code" / "blobs").mkdir()
    message = case.refused_early("Give the path of one of the checkpoints below it")
    assert f"below it: {case.folder / 'code' / 'snapshots' / '1111'}, " in message


def test_an_empty_folder_is_told_as_before(case: Case) -> None:
    folder_with(case)
    (case.folder / "code" / "sub").mkdir(parents=True)
    case.refused_early("expected a .safetensors file. Check the path.")


# other models


@pytest.mark.parametrize(
    "theirs", ["LlamaForSequenceClassification", "LlamaForTokenClassification", "LlamaForRewardModel"]
)
def test_a_reward_model_among_the_agents_is_told(case: Case, theirs: str) -> None:
    case.put("base", model())
    case.put("code", trained(model(), 1), {"architectures": [theirs]})
    text = f"agent 'code' has architectures {theirs}, base has LlamaForCausalLM: a reward model or classifier?"
    assert any(text in warning for warning in case.merge().warnings)
    assert any(text in finding.found for finding in case.check().findings)


@pytest.mark.parametrize(
    "name", ["score.weight", "v_head.summary.weight", "model.value_head.weight", "classifier.bias"]
)
def test_the_head_of_a_reward_model_is_told_by_what_it_is(case: Case, name: str) -> None:
    case.put("base", model())
    case.put("code", {**trained(model(), 1), name: np.ones((1, 12), BF16)})
    case.refused_early(name, "reward model, classifier or critic")


def test_what_fsdp_puts_before_the_class_is_no_other_architecture(case: Case) -> None:
    case.put("base", model())
    case.put("code", trained(model(), 1), {"architectures": ["FSDPLlamaForCausalLM"]})
    assert case.merge().warnings == []
