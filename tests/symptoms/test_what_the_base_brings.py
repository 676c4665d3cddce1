"""Links that lead nowhere, a base without a config, folders that another file names, logs, and files of odd content."""

from __future__ import annotations

import codecs
import json

import pytest

from agentmerge.testing import write_checkpoint
from tests.symptoms.conftest import CONFIG, EMBED, HEAD, Case, model, tokenizer, trained, words


def pair(case: Case, base=None, code=None, base_config=None, code_config=None) -> None:
    case.put("base", model(), base_config, **(base or {}))
    case.put("code", trained(model(), 1), code_config, **(code or {}))


def dangle(case: Case, name: str, who: str = "base", target: str = "gone") -> None:
    path = case.folder / who / name
    path.unlink(missing_ok=True)
    path.symlink_to(target)


NEEDED = ["config.json", "tokenizer.json", "generation_config.json", "modeling_own.py", "chat_template.jinja",
          "preprocessor_config.json", "qwen.tiktoken", "tokenizer.model", "modules.json"]  # fmt: skip


@pytest.mark.parametrize("name", NEEDED)
def test_a_link_to_nothing_in_the_base_is_an_error_that_names_link_and_target(case: Case, name: str) -> None:
    pair(case)
    dangle(case, name)
    message = case.refused_early(f"base/{name}: no such file: it is a link to gone", "expected the file")
    assert message.count(name) == 1
    assert [f.where for f in case.check().findings if f.severity == "error"] == ["base"]


def test_every_dangling_link_of_the_base_is_told_at_once(case: Case) -> None:
    pair(case)
    for name in ("config.json", "tokenizer.json", "generation_config.json"):
        dangle(case, name, target=f"../blobs/{name}")
    message = case.refused_early(*(f"a link to ../blobs/{n}" for n in ("config.json", "tokenizer.json")))
    assert "../blobs/generation_config.json" in message


@pytest.mark.parametrize("name", ["tokenizer.json", "tokenizer.model", "chat_template.jinja"])
def test_a_link_to_nothing_in_the_folder_that_gives_the_tokenizer_is_an_error_too(case: Case, name: str) -> None:
    pair(case, tokenizer(words(16)), tokenizer(words(16)))
    dangle(case, name, "code")
    case.refused_early(f"code/{name}: no such file: it is a link to gone", inputs={"tokenizer_from": "code"})


@pytest.mark.parametrize("name", ["config.json", "tokenizer.json"])
def test_a_link_to_nothing_that_hides_what_an_agent_is_stops_the_merge(case: Case, name: str) -> None:
    pair(case)
    dangle(case, name, "code")
    case.refused_early(f"code/{name}: no such file: it is a link to gone")


def test_a_link_to_nothing_that_is_only_compared_is_a_warning(case: Case) -> None:
    pair(case)
    dangle(case, "generation_config.json", "code")
    (warning,) = case.merge().warnings
    assert warning == "agent 'code': generation_config.json: links whose targets are not there, so not compared"


@pytest.mark.parametrize("who", ["base", "code"])
@pytest.mark.parametrize("shard_size", [400, 10**9])
def test_weights_that_are_links_to_nothing_name_the_target(case: Case, who: str, shard_size: int) -> None:
    pair(case)
    write_checkpoint(case.folder / who, model(), config=CONFIG, shard_size=shard_size)
    if shard_size == 400:
        (case.folder / who / "model.safetensors").unlink()
    weights = sorted((case.folder / who).glob("*.safetensors"))[0]
    dangle(case, weights.name, who, "/nowhere/blob")
    case.refused_early(f"{weights.name}: no such file: it is a link to /nowhere/blob")


def test_a_link_to_nothing_that_the_output_does_not_need_is_no_matter(case: Case) -> None:
    pair(case)
    for name in ("nohup.out", "optimizer.pt", "README.md", ".lock"):
        dangle(case, name)
    assert case.merge().warnings == []


def test_a_base_without_a_config_is_told(case: Case) -> None:
    pair(case)
    (case.folder / "base" / "config.json").unlink()
    assert any("base: has no config.json" in warning for warning in case.merge().warnings)
    assert any("has no config.json" in finding.found for finding in case.check().findings)


def test_a_base_without_a_tokenizer_is_told_where_an_agent_has_one(case: Case) -> None:
    pair(case, None, tokenizer(words(16)))
    assert any("base: has no tokenizer, and agents have (code)" in warning for warning in case.merge().warnings)
    assert case.merge(inputs={"tokenizer_from": "code"}).warnings == []


# folders left behind

MODULES = [{"idx": 0, "name": "0", "path": "", "type": "Transformer"}, {"idx": 1, "name": "1", "path": "1_Dense"}]


@pytest.mark.parametrize(
    ("file", "content", "folder"),
    [
        ("modules.json", MODULES, "1_Dense"),
        ("model_index.json", {"_class_name": "P", "vae": ["diffusers", "AutoencoderKL"]}, "vae"),
        ("audio.json", {"encoder": {"path": "./speech_encoder/model.safetensors"}}, "speech_encoder"),
    ],
)
def test_a_part_of_the_model_that_stays_behind_though_a_file_names_it_is_told(
    case: Case, file, content, folder
) -> None:
    pair(case, {file: json.dumps(content).encode(), f"{folder}/model.safetensors": b"", f"{folder}/config.json": b"{}"})
    (warning,) = case.merge().warnings
    assert f"{folder} stays behind (it holds weights), though a file of the base names it" in warning
    assert not (case.out / folder).exists()
    assert any(f"{folder} stays behind" in finding.found for finding in case.check().findings)


def test_a_folder_with_weights_that_nothing_names_is_no_part_of_the_model(case: Case) -> None:
    pair(case, {"checkpoint-7/model.safetensors": b"", "original/consolidated.00.pth": b""})
    assert case.merge().warnings == []


# logs

LOGS = ["nohup.out", "train.log", "train.log.1", "wandb/run-1/files/config.yaml",
        "runs/Nov28/events.out.tfevents.1.host",
        "slurm-123.out", "slurm-123.err", "explore.ipynb", ".ipynb_checkpoints/explore.ipynb", "logs/0.txt",
        "tensorboard/events.out.tfevents.2", "trainer_log.jsonl", "all_results.json", "train_results.json",
        "mlruns/0/meta.yaml",
        "training_loss.png", "__pycache__/modeling_own.pyc", "latest",
        "lightning_logs/version_0/hparams.yaml"]  # fmt: skip


@pytest.mark.parametrize("name", LOGS)
def test_logs_of_the_base_do_not_arrive(case: Case, name: str) -> None:
    pair(case, {name: b"secret", "LICENSE": b"Apache", "1_Pooling/config.json": b"{}"})
    case.merge()
    assert not (case.out / name).exists()
    assert (case.out / "LICENSE").exists()
    assert (case.out / "1_Pooling" / "config.json").exists()


# odd content

ODD = [[], ["x"], 3, -1.5, "x", None, True, {"a": ["b", {"c": None}]}, [[1]], 1e400]
KEYS = ["auto_map", "architectures", "rope_scaling", "rope_parameters", "rope_theta", "text_config", "llm_config",
        "vocab_size",
        "tie_word_embeddings", "quantization_config", "quantization", "num_attention_heads", "dtype", "eos_token_id",
        "model_type", "thinker_config", "attn_config", "max_position_embeddings", "partial_rotary_factor"]  # fmt: skip


@pytest.mark.parametrize("key", KEYS)
@pytest.mark.parametrize("who", ["base", "code"])
def test_a_setting_of_an_unexpected_kind_never_ends_in_a_traceback(case: Case, key: str, who: str) -> None:
    inputs = {"rope": "base", "vocab": "union", "untie": True, "tokenizer_from": "code"}
    for value in ODD:
        pair(case, tokenizer(words(16)), tokenizer(words(16)), **{f"{who}_config": {key: value}})
        if case.check(inputs=inputs).ok and value in (["x"], "x", ODD[7]):
            case.merge(inputs=inputs)
        case.check()


BESIDE = {
    "generation_config.json": ["eos_token_id", "max_length"],
    "tokenizer_config.json": ["chat_template", "model_max_length", "auto_map", "vocab_file", "added_tokens_decoder"],
    "preprocessor_config.json": ["size"],
    "chat_template.json": ["chat_template"],
    "modules.json": ["path"],
}


@pytest.mark.parametrize("name", BESIDE)
@pytest.mark.parametrize("who", ["base", "code"])
def test_nor_does_one_of_another_file(case: Case, name: str, who: str) -> None:
    plain = {key: value for key, value in tokenizer(words(16)).items() if key == "tokenizer.json"}
    for value in [*ODD, *({key: odd} for key in BESIDE[name] for odd in ODD)]:
        odd = {**plain, name: json.dumps(value).encode()}
        pair(case, odd if who == "base" else plain, odd if who == "code" else plain)
        inputs = {"tokenizer_from": "code"}
        if case.check(inputs=inputs).ok and value in (["x"], ODD[7]):
            case.merge(inputs=inputs)
        case.check()


NONE = [{"model": 3}, {"model": {"vocab": [1]}}, {"model": {"vocab": {"a": 1e400}}}, {"model": {"vocab": {"a": "x"}}},
        {"model": {"vocab": {}}, "added_tokens": [3]}]  # fmt: skip


@pytest.mark.parametrize("value", [*ODD, *NONE])
def test_nor_does_a_tokenizer_that_is_none(case: Case, value) -> None:
    pair(case, tokenizer(words(16)), {"tokenizer.json": json.dumps(value).encode()})
    assert not case.check().ok


def test_a_byte_order_mark_before_index_or_config_is_no_matter(case: Case) -> None:
    for name, seed in (("base", None), ("code", 1)):
        tensors = model() if seed is None else trained(model(), seed)
        write_checkpoint(case.folder / name, tensors, config=CONFIG, shard_size=400)
        for file in ("config.json", "model.safetensors.index.json"):
            path = case.folder / name / file
            path.write_bytes(codecs.BOM_UTF8 + path.read_bytes())
    case.agents["code"] = str(case.folder / "code")
    case.merge()
    assert case.config == CONFIG
    assert (case.out / "config.json").read_bytes().startswith(b"{")
    assert {EMBED, HEAD} <= case.result.keys()


def test_a_config_nested_beyond_reason_is_refused_calmly(case: Case) -> None:
    pair(case)
    (case.folder / "code" / "config.json").write_text('{"a":' * 400 + "1" + "}" * 400)
    case.refused_early("code/config.json: not valid JSON: nested more than 100 levels deep")


def test_what_the_header_of_the_base_said_of_its_file_is_not_said_of_the_output(case: Case) -> None:
    from safetensors import safe_open
    from safetensors.numpy import save_file

    pair(case)
    plain = {name: array.astype("float32") for name, array in model().items()}
    metadata = {"format": "np", "total_size": "7", "quantization": "fp8", "shard": "1 of 3"}
    save_file(plain, case.folder / "base" / "model.safetensors", metadata)
    case.merge()
    with safe_open(case.out / "model.safetensors", "np") as found:
        assert found.metadata() == {"format": "pt"}
