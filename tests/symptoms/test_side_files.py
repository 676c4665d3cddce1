"""Config, tokenizer, template, stop ids, processors and remote code of the output, and what is told of the agents'."""

from __future__ import annotations

import json

import pytest

from tests.symptoms.conftest import CONFIG, Case, model, tokenizer, trained, words

JINJA = b"{% for m in messages %}<|im_start|>{{ m.content }}<|im_end|>{% endfor %}\n"
PROCESSORS = ["preprocessor_config.json", "processor_config.json", "video_preprocessor_config.json"]


def pair(case: Case, base=None, code=None, base_config=None, code_config=None, tool=None):
    case.put("base", model(), base_config, **(base or {}))
    case.put("code", trained(model(), 1), code_config, **(code or {}))
    if tool is not None:
        case.put("tool", trained(model(), 2), **tool)


def warned(case: Case, *parts, **sections) -> bool:
    """A merge and a check warn of the same."""
    merged = case.merge(**sections).warnings
    checked = [f.found for f in case.check(**sections).findings if f.severity == "warning"]
    told = [any(part in text for text in merged) for part in parts]
    assert told == [any(part.split(";")[0] in text for text in checked) for part in parts], (merged, checked)
    return all(told)


# files


def test_every_side_file_of_the_base_arrives_byte_for_byte(case: Case) -> None:
    files = {
        **tokenizer(words(16)),
        "generation_config.json": b'{"eos_token_id": [2, 7],\n "do_sample": true}',
        "chat_template.jinja": JINJA,
        "modeling_own.py": b"import torch\r\n",
        **dict.fromkeys(PROCESSORS, b'{"min_pixels": 3}\n'),
    }
    config = {"auto_map": {"AutoModelForCausalLM": "modeling_own.Own"}}
    pair(case, files, {"chat_template.jinja": JINJA}, config, config)
    case.merge()
    for name, content in files.items():
        assert (case.out / name).read_bytes() == content
    assert case.config == {**CONFIG, **config}


def test_the_tokenizer_of_an_agent_comes_with_its_template_and_its_code(case: Case) -> None:
    base = {**tokenizer(words(16)), "chat_template.json": b'{"chat_template": "old"}', "merges.txt": b"a b"}
    code = {**tokenizer(words(16)), "chat_template.jinja": JINJA, "tokenization_own.py": b"x = 1\n"}
    pair(case, {**base, "modeling_own.py": b"y = 1\n"}, {**code, "modeling_other.py": b"z = 1\n"})
    case.merge(inputs={"tokenizer_from": "code"})
    names = {path.name for path in case.out.iterdir()}
    assert {"chat_template.jinja", "tokenization_own.py", "modeling_own.py", "tokenizer.json"} <= names
    assert not {"chat_template.json", "merges.txt", "modeling_other.py"} & names


def test_nothing_that_makes_an_engine_look_for_other_weights_arrives(case: Case) -> None:
    stale = ["adapter_config.json", "model.safetensors.index.fp8.json", "pytorch_model.bin.index.json",
             "consolidated.safetensors.index.json", "quantize_config.json", "zero_to_fp32.py"]  # fmt: skip
    pair(case, dict.fromkeys(stale, b"{}"))
    case.merge()
    assert not set(stale) & {path.name for path in case.out.iterdir()}


def test_remote_code_that_the_base_lacks_is_told(case: Case) -> None:
    config = {"auto_map": {"AutoConfig": "configuration_own.C", "AutoModel": ["modeling_own.M", None]}}
    pair(case, {"configuration_own.py": b""}, None, config, config)
    assert warned(case, "config.json needs modeling_own.py (auto_map)")


def test_remote_code_of_another_repository_needs_no_file(case: Case) -> None:
    config = {"auto_map": {"AutoConfig": "someone/repo--configuration_own.C"}}
    pair(case, None, None, config, config)
    assert case.merge().warnings == []


@pytest.mark.parametrize("name", PROCESSORS)
def test_another_processor_of_an_agent_is_told(case: Case, name) -> None:
    pair(case, {name: b'{"max_pixels": 1, "a": 2}'}, {name: b'{"max_pixels": 9, "a": 2}'})
    assert warned(case, f"agent 'code' has another {name} (max_pixels)")


# stop ids


def test_an_agent_that_stops_at_other_tokens_is_told_and_the_bases_stay(case: Case) -> None:
    files = [{"generation_config.json": json.dumps({"eos_token_id": ids}).encode()} for ids in ([2, 7], 5)]
    pair(case, *files)
    assert warned(case, "agent 'code' stops at the tokens [5], the base at [2, 7]")
    assert (case.out / "generation_config.json").read_bytes() == files[0]["generation_config.json"]


def test_the_same_stop_ids_in_another_order_or_file_are_no_difference(case: Case) -> None:
    first = {"generation_config.json": b'{"eos_token_id": [2, 7]}'}
    pair(case, first, None, None, {"eos_token_id": [7, 2]})
    assert case.merge().warnings == []


# templates


@pytest.mark.parametrize("name", ["chat_template.jinja", "chat_template.json", "tokenizer_config.json"])
def test_another_chat_template_of_an_agent_is_told_wherever_it_stands(case: Case, name) -> None:
    text = "other" if name.endswith("jinja") else json.dumps({"chat_template": "other"})
    pair(case, {"chat_template.jinja": JINJA}, {name: text.encode()})
    assert warned(case, "agent 'code' has another chat template than the base; the output has that of the base")


def test_the_same_template_in_jinja_and_in_json_is_no_difference(case: Case) -> None:
    named = [{"name": "default", "template": JINJA.decode()}, {"name": "rag", "template": "x"}]
    files = {"chat_template.jinja": JINJA, "additional_chat_templates/rag.jinja": b"x\n"}
    pair(case, files, {"tokenizer_config.json": json.dumps({"chat_template": named}).encode()})
    assert case.merge().warnings == []


def test_a_base_without_a_template_is_told_that_the_output_has_none(case: Case) -> None:
    """Pretrained bases often have none, and every agent has one."""
    pair(case, tokenizer(words(16)), {**tokenizer(words(16)), "chat_template.jinja": JINJA})
    assert warned(case, "has a chat template and the base has none: the output will have none")
    assert case.merge(inputs={"tokenizer_from": "code"}).warnings == []
    assert (case.out / "chat_template.jinja").read_bytes() == JINJA


def test_templates_are_compared_with_the_one_that_the_output_gets(case: Case) -> None:
    one, two = {"chat_template.jinja": b"one"}, {"chat_template.jinja": b"two"}
    files = [{**tokenizer(words(16)), **part} for part in (one, two, one)]
    pair(case, files[0], files[1], tool=files[2])
    sections = {"inputs": {"tokenizer_from": "code"}}
    assert warned(case, "agent 'tool' has another chat template than agent 'code'", **sections)


# rope and length

YARN = {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 64}


def test_a_long_context_agent_with_another_rope_stops_unless_it_is_allowed(case: Case) -> None:
    pair(case, None, None, None, {"rope_scaling": YARN, "max_position_embeddings": 256})
    message = case.refused_early("agent 'code' has rope", "yarn, factor 4.0", "--rope base")
    assert "base has theta 10000.0, type default" in message
    assert warned(case, "agent 'code' has rope", "max_position_embeddings 256, base has 64", inputs={"rope": "base"})
    assert case.config["rope_theta"] == 10000.0
    assert "rope_scaling" not in case.config


def test_another_base_frequency_stops(case: Case) -> None:
    pair(case, None, None, None, {"rope_theta": 1e6})
    case.refused_early("theta 1000000.0", "base has theta 10000.0")


OLD = {"rope_theta": 500000, "rope_scaling": {"type": "yarn", "factor": 4}}
LINEAR = {"rope_type": "linear", "factor": 8.0}
GEMMA = {"rope_theta": 1000000.0, "rope_local_base_freq": 10000.0, "rope_scaling": LINEAR}
NEW_GEMMA = {
    "rope_parameters": {
        "full_attention": {"rope_type": "linear", "factor": 8.0, "rope_theta": 1000000.0},
        "sliding_attention": {"rope_type": "default", "rope_theta": 10000},
    }
}
PHI = {"type": "longrope", "long_factor": [1, 2.0]}
NEW_PHI = {"rope_type": "longrope", "long_factor": [1.0, 2], "original_max_position_embeddings": 16}
PLAIN = {"rope_type": "default", "rope_theta": 1000000.0}
SAME = {
    "yarn": (OLD, {"rope_parameters": {"rope_type": "yarn", "factor": 4.0, "rope_theta": 500000.0}}),
    "default": ({"rope_theta": 1000000, "rope_scaling": None}, {"rope_parameters": PLAIN}),
    "mrope": (
        {"rope_theta": 1e6, "rope_scaling": {"type": "mrope", "mrope_section": [1, 1, 2]}},
        {"rope_parameters": {**PLAIN, "type": "mrope", "mrope_section": [1, 1, 2]}},
    ),
    "gemma": (GEMMA, NEW_GEMMA),
    "gemma that names the factor alone": ({"rope_scaling": LINEAR}, NEW_GEMMA),
    "phi": (
        {"rope_theta": 1e4, "original_max_position_embeddings": 16, "rope_scaling": PHI},
        {"rope_parameters": {**NEW_PHI, "rope_theta": 10000}},
    ),
    "inside text_config": ({"rope_theta": 1e6}, {"text_config": {"rope_parameters": PLAIN}}),
}
NO_ROPE = {"rope_theta": None, "dtype": None, "torch_dtype": "bfloat16"}


@pytest.mark.parametrize("spelling", SAME)
@pytest.mark.parametrize("turned", [False, True])
def test_the_spelling_of_transformers_5_equals_the_older_one(case: Case, spelling, turned) -> None:
    ours, theirs = SAME[spelling][:: -1 if turned else 1]
    pair(case, None, None, {**NO_ROPE, **ours}, {**NO_ROPE, "torch_dtype": None, "dtype": "bfloat16", **theirs})
    assert case.merge().warnings == []


EDITS = {
    "factor": ('"factor": 4.0', '"factor": 2.0'),
    "rope_theta": ('"rope_theta": 1000000.0', '"rope_theta": 7.0'),
    "rope_type": ('"rope_type": "linear"', '"rope_type": "dynamic"'),
    "mrope_section": ("[1, 1, 2]", "[2, 1, 1]"),
    "long_factor": ("[1.0, 2]", "[1.0, 3]"),
}


@pytest.mark.parametrize(
    ("spelling", "key"),
    [
        ("yarn", "factor"),
        ("default", "rope_theta"),
        ("mrope", "rope_theta"),
        ("mrope", "mrope_section"),
        ("gemma", "rope_theta"),
        ("gemma", "rope_type"),
        ("gemma that names the factor alone", "rope_type"),
        ("phi", "long_factor"),
        ("inside text_config", "rope_theta"),
    ],
)
def test_and_a_difference_is_seen_through_both_spellings(case: Case, spelling, key) -> None:
    ours, theirs = SAME[spelling]
    changed = json.dumps(theirs).replace(*EDITS[key])
    pair(case, None, None, {**NO_ROPE, **ours}, {**NO_ROPE, **json.loads(changed)})
    case.refused("has rope", "--rope base")


def test_another_length_of_the_tokenizer_is_told_but_no_limit_is_none(case: Case) -> None:
    limits = [{"tokenizer_config.json": json.dumps({"model_max_length": n}).encode()} for n in (64, 256, 10**30)]
    pair(case, limits[0], limits[1], tool=limits[0])
    assert warned(case, "agent 'code' has model_max_length 256 in its tokenizer_config.json, base has 64")
    pair(case, limits[2], limits[2], tool=limits[2])
    assert case.merge().warnings == []


# architecture


@pytest.mark.parametrize("key", ["num_attention_heads", "num_key_value_heads", "head_dim"])
def test_another_division_into_heads_is_refused_although_the_shapes_agree(case: Case, key) -> None:
    pair(case, None, None, {key: 4}, {key: 2})
    case.refused_early(f"agent 'code' has {key} 2, base has 4", "Correct its config.json")


@pytest.mark.parametrize(
    ("key", "ours", "theirs"),
    [("rms_norm_eps", 1e-6, 1e-5), ("sliding_window", 4096, 1024), ("num_experts_per_tok", 8, 4)],
)
def test_other_settings_of_the_architecture_are_told(case: Case, key, ours, theirs) -> None:
    pair(case, None, None, {key: ours}, {key: theirs})
    assert warned(case, f"agent 'code' has {key} {theirs}, base has {ours}")


def test_agents_without_any_config_merge_under_the_bases(case: Case) -> None:
    pair(case)
    (case.folder / "code" / "config.json").unlink()
    assert case.merge().warnings == []


def test_a_broken_config_of_an_agent_is_named(case: Case) -> None:
    pair(case)
    (case.folder / "code" / "config.json").write_text("{")
    case.refused_early("code/config.json: not valid JSON")
