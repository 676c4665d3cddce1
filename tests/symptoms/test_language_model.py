"""The language model's settings in a section of another name, or under other names: seen and set all the same."""

from __future__ import annotations

import numpy as np
import pytest

from agentmerge.sources.language import language_model, language_path
from tests.symptoms.conftest import BF16, CONFIG, EMBED, HEAD, ROWS, WIDTH, Case, model, same, tokenizer, trained, words

TEXT = {k: v for k, v in CONFIG.items() if k not in ("architectures", "dtype", "torch_dtype")}
OUTER = {"architectures": ["OmniForConditionalGeneration"], "model_type": "omni", "vision_config": {"hidden_size": 7}}
PLACES = ["text_config", "llm_config", "language_config", "thinker_config.text_config", "text_model_config",
          "decoder_config",
          "llm", "language_model", "llm_cfg", "thinker_config", "some_family.our_lm"]  # fmt: skip


def placed(place: str, settings) -> dict:
    """A config that keeps these settings at a place."""
    for key in reversed(place.split(".")):
        settings = {key: settings}
    return {**dict.fromkeys(CONFIG), **OUTER, **settings}


def at(config, place: str):
    for key in place.split("."):
        config = config[key]
    return config


def pair(case: Case, place: str, ours=None, theirs=None, agent=None, **files) -> None:
    case.put("base", model(), placed(place, {**TEXT, **(ours or {})}), **files.get("base", {}))
    agent = trained(model(), 1) if agent is None else agent
    case.put("code", agent, placed(place, {**TEXT, **(theirs or {})}), **files.get("code", {}))


@pytest.mark.parametrize("place", PLACES)
def test_the_section_is_found(place: str) -> None:
    config = placed(place, TEXT)
    assert ".".join(language_path(config)) == place
    assert language_model(config)["rope_theta"] == 10000.0


@pytest.mark.parametrize("place", PLACES)
@pytest.mark.parametrize("theirs", [{"rope_theta": 5e6}, {"rope_scaling": {"rope_type": "yarn", "factor": 4.0}}])
def test_another_rope_there_stops(case: Case, place: str, theirs) -> None:
    pair(case, place, None, theirs)
    case.refused_early("agent 'code' has rope", "--rope base")


@pytest.mark.parametrize("place", PLACES)
def test_another_division_into_heads_there_is_refused(case: Case, place: str) -> None:
    pair(case, place, {"num_attention_heads": 4}, {"num_attention_heads": 2})
    case.refused_early("agent 'code' has num_attention_heads 2, base has 4")


@pytest.mark.parametrize("place", PLACES)
def test_union_sets_the_vocabulary_there_and_nowhere_else(case: Case, place: str) -> None:
    rng = np.random.default_rng(3)
    agent = trained(model(), 1)
    for name in (EMBED, HEAD):
        agent[name] = np.concatenate([agent[name], rng.normal(0, 1, (2, WIDTH)).astype(BF16)])
    files = {"base": tokenizer(words(ROWS)), "code": tokenizer(words(ROWS + 2))}
    pair(case, place, None, {"vocab_size": ROWS + 2}, agent, **files)
    case.merge(inputs={"vocab": "union"})
    assert case.result[EMBED].shape == (ROWS + 2, WIDTH)
    assert at(case.config, place)["vocab_size"] == ROWS + 2
    assert case.config.get("vocab_size") is None


@pytest.mark.parametrize("place", PLACES)
def test_a_tie_there_counts_and_untie_takes_it_back(case: Case, place: str) -> None:
    tied = {"tie_word_embeddings": True}
    headless = {name: array for name, array in model().items() if name != HEAD}
    case.put("base", headless, placed(place, {**TEXT, **tied}))
    case.put("code", {**trained(headless, 1)}, placed(place, {**TEXT, **tied}))
    case.merge()
    assert HEAD not in case.result
    case.merge(inputs={"untie": True})
    assert at(case.config, place)["tie_word_embeddings"] is False
    assert case.config["tie_word_embeddings"] is False


@pytest.mark.parametrize("place", PLACES)
def test_the_dtype_there_is_that_of_the_output(case: Case, place: str) -> None:
    pair(case, place, {"torch_dtype": "bfloat16"})
    case.merge(output={"dtype": "float32"})
    assert at(case.config, place)["torch_dtype"] == case.config["dtype"] == "float32"


@pytest.mark.parametrize("place", PLACES)
def test_a_quantisation_there_is_seen_and_taken_out(case: Case, place: str) -> None:
    pair(case, place, {"quantization_config": {"quant_method": "gptq"}})
    case.refused_early("quant_method 'gptq'")
    pair(case, place, {"quantization_config": {"quant_method": "fp8"}})
    case.merge()
    assert "quantization_config" not in at(case.config, place)


def test_sections_of_other_models_are_not_taken_for_it(case: Case) -> None:
    config = {"vision_config": {"vocab_size": 3, "rope_theta": 1}, "talker_config": {"vocab_size": 5}, "llm": {**TEXT}}
    assert language_path(config) == ("llm",)
    assert language_path({**TEXT, "audio_config": {"vocab_size": 9}, "draft": {"vocab_size": 9}}) == ()


# other spellings

ROPES = ["rotary_emb_base", "rope_base", "rotary_base", "rope_ratio", "rotary_pct", "rope_pct", "rotary_dim"]


@pytest.mark.parametrize("key", ROPES)
def test_another_spelling_of_the_rope_is_seen(case: Case, key: str) -> None:
    for config in ({"rope_theta": None, key: 0.5}, {"rope_theta": None, "attn_config": {key: 0.5}}):
        case.put("base", model(), {**config})
        other = {k: ({key: 0.25} if isinstance(v, dict) else 0.25) if v else v for k, v in config.items()}
        case.put("code", trained(model(), 1), other)
        case.refused_early("agent 'code' has rope", "--rope base")


def test_the_same_rope_in_two_spellings_is_no_difference(case: Case) -> None:
    case.put("base", model(), {"rope_theta": None, "rotary_emb_base": 10000, "rotary_pct": 0.25})
    case.put("code", trained(model(), 1), {"rope_theta": 1e4, "partial_rotary_factor": 0.25})
    assert case.merge().warnings == []


HEADS = {
    "num_attention_heads": ["n_head", "n_heads", "num_heads"],
    "num_key_value_heads": ["num_kv_heads", "n_head_kv", "multi_query_group_num", "kv_n_heads"],
    "head_dim": ["kv_channels", "head_size"],
}


@pytest.mark.parametrize(("usual", "key"), [(usual, key) for usual, keys in HEADS.items() for key in keys])
@pytest.mark.parametrize("inner", [False, True])
def test_another_spelling_of_the_heads_is_seen(case: Case, usual: str, key: str, inner: bool) -> None:
    def config(count):
        return {"attn_config": {key: count}} if inner else {key: count}

    case.put("base", model(), config(4))
    case.put("code", trained(model(), 1), config(2))
    case.refused_early(f"agent 'code' has {usual} 2, base has 4")
    case.put("code", trained(model(), 1), {usual: 4})
    assert case.merge().warnings == []


def test_a_padded_vocabulary_grows_under_its_own_name(case: Case) -> None:
    agent = trained(model(), 1)
    for name in (EMBED, HEAD):
        agent[name] = np.concatenate([agent[name], np.ones((2, WIDTH), BF16)])
    case.put("base", model(), {"vocab_size": None, "padded_vocab_size": ROWS}, **tokenizer(words(ROWS)))
    case.put("code", agent, {"vocab_size": None, "padded_vocab_size": ROWS + 2}, **tokenizer(words(ROWS + 2)))
    case.merge(inputs={"vocab": "union"})
    assert case.config["padded_vocab_size"] == ROWS + 2
    same(case.result[EMBED][-2:], np.ones((2, WIDTH), BF16))
