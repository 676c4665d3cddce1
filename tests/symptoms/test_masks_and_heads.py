"""Legal models: masks of -inf, and heads under the names that other families use."""

from __future__ import annotations

import numpy as np
import pytest

import agentmerge
from agentmerge.testing import read_checkpoint
from tests.symptoms.conftest import BF16, EMBED, HEAD, MLP, Case, model, ram, same, trained

MASK = "model.layers.0.attn.causal_mask"
METHODS = ["ram", "ram+", "ram_plus_auto", "task_arithmetic", {"name": "ties", "density": 0.5},
           {"name": "dare", "density": 0.5, "then": "ram"}, {"name": "linear"}]  # fmt: skip


def mask(dtype: str = "float32"):
    return np.triu(np.full((70, 70), -np.inf), 1).astype(dtype)


def masked(case: Case, *, base=None, code=None, tool=None) -> None:
    for i, (name, other) in enumerate((("base", base), ("code", code), ("tool", tool))):
        tensors = model() if name == "base" else trained(model(), i)
        case.put(name, {**tensors, MASK: mask() if other is None else other})


@pytest.mark.parametrize("method", METHODS, ids=str)
@pytest.mark.parametrize("block_size", [4096, 10**6])
def test_a_mask_of_minus_infinity_that_every_source_has_is_copied(case: Case, method, block_size: int) -> None:
    case.put("base", model())
    case.put("code", trained(model(), 1))
    case.put("tool", trained(model(), 2))
    case.merge(method, inputs={"unchanged": "allow"})
    plain = case.result
    masked(case)
    record = case.merge(method, inputs={"unchanged": "allow"}, run={"block_size": block_size})
    same(case.result[MASK], mask())
    if method not in ("ram+", "ram_plus_auto") and "ties" not in str(method):  # these count over all elements
        for name, array in plain.items():
            same(case.result[name], array)
    assert any("0 NaN and 2415 inf are the same in every source and are copied" in w for w in record.warnings)
    assert case.check().ok


def test_elements_beside_them_are_merged(case: Case) -> None:
    code = mask()
    code[3, 0] = 0.5
    masked(case, code=code)
    case.merge()
    same(case.result[MASK], code)


def test_a_full_probe_and_a_saved_survey_take_them_too(case: Case) -> None:
    masked(case)
    record = agentmerge.probe(case.recipe(), full=True)
    assert any("2415 inf" in warning for warning in record.warnings)
    record.save(case.folder / "survey.json")
    case.merge("ram+", run={"survey": str(case.folder / "survey.json")})
    same(case.result[MASK], mask())


def test_the_mask_of_another_width_of_number_is_the_same_mask(case: Case) -> None:
    masked(case, code=mask().astype(BF16))
    case.merge(output={"dtype": "bfloat16"})
    same(case.result[MASK], mask().astype(BF16))


def test_a_nan_that_every_source_has_is_copied_and_told(case: Case) -> None:
    odd = np.zeros((70, 70), np.float32)
    odd[1, 2] = np.nan
    masked(case, base=odd, code=odd, tool=odd)
    assert any("1 NaN and 0 inf are the same" in warning for warning in case.merge().warnings)
    same(case.result[MASK], odd)
    case.merge(rules=[{"tensors": MASK, "take": "base"}])
    same(case.result[MASK], odd)


@pytest.mark.parametrize("who", ["code", "tool"])
def test_an_agent_with_another_mask_is_told_and_the_advice_helps(case: Case, who: str) -> None:
    other = mask()
    other[0, 1] = 0
    masked(case, **{who: other})
    message = case.refused(f"{MASK}: base", "finite numbers, or the same NaN and inf in every source")
    rule = {"tensors": MASK, "take": "base"}
    assert f"{{tensors: {MASK}, take: base}}" in message
    case.merge(rules=[rule])
    same(case.result[MASK], mask())


def test_infinity_that_one_agent_alone_has_is_damage_in_a_copy_too(case: Case) -> None:
    other = np.zeros((70, 70), np.float32)
    other[5, 5] = np.inf
    masked(case, base=np.zeros_like(other), code=other, tool=np.zeros_like(other))
    case.refused(f"{MASK}: agent 'code'", rules=[{"tensors": MASK, "take": "code"}])
    case.refused(f"{MASK}: agent 'code'")


def test_a_base_that_is_not_finite_where_no_agent_has_the_tensor_is_refused(case: Case) -> None:
    case.put("base", {**model(), MASK: np.full((3, 3), np.nan, np.float32)})
    case.put("code", trained(model(), 1))
    case.refused(f"{MASK}: base", inputs={"missing": "base"})


# heads

FAMILIES = {
    "Qwen Omni": ("thinker.model.embed_tokens.weight", "thinker.lm_head.weight"),
    "ChatGLM": ("transformer.embedding.word_embeddings.weight", "transformer.output_layer.weight"),
    "OLMo": ("model.transformer.wte.weight", "model.transformer.ff_out.weight"),
    "InternVL": ("language_model.model.embed_tokens.weight", "language_model.lm_head.weight"),
    "InternLM2": ("model.tok_embeddings.weight", "output.weight"),
    "GPT-NeoX": ("gpt_neox.embed_in.weight", "embed_out.weight"),
    "transformers 5": ("model.language_model.embed_tokens.weight", "lm_head.weight"),
    "llm": ("llm.model.embed_tokens.weight", "llm.lm_head.weight"),
    "unusual": ("model.embed_tokens.weight", "model.token_scores.weight"),
}


def family(which: str, seed: int | None = None):
    embedding, head = FAMILIES[which]
    tensors = model() if seed is None else trained(model(), seed)
    return {{EMBED: embedding, HEAD: head}.get(name, name): array for name, array in tensors.items()}


@pytest.mark.parametrize("which", FAMILIES)
def test_a_head_of_its_own_is_found_and_untie_adds_no_second_one(case: Case, which: str) -> None:
    case.put("base", family(which))
    case.put("code", family(which, 1))
    case.merge()
    assert case.result.keys() == family(which).keys()
    case.merge(inputs={"untie": True})
    assert case.result.keys() == family(which).keys()
    head = FAMILIES[which][1]
    same(case.result[head], ram(family(which)[head], family(which, 1)[head]))


@pytest.mark.parametrize("which", [name for name in FAMILIES if name != "unusual"])
def test_a_tied_head_gets_the_name_of_its_family(case: Case, which: str) -> None:
    embedding, head = FAMILIES[which]
    base = {name: array for name, array in family(which).items() if name != head}
    agent = {name: array for name, array in family(which, 1).items() if name != head}
    tied = {"tie_word_embeddings": True}
    case.put("base", base, tied)
    case.put("code", {**agent, head: agent[embedding].copy()}, tied)
    case.merge()
    assert head not in case.result
    case.merge(inputs={"untie": True})
    assert case.result.keys() == family(which).keys()
    same(case.result[head], case.result[embedding])


def test_the_talker_of_an_omni_model_hides_no_embedding(case: Case) -> None:
    talker = {"talker.model.embed_tokens.weight": model(7)[EMBED], "talker.codec_head.weight": model(8)[HEAD]}
    tied = {"tie_word_embeddings": True}
    base = {name: array for name, array in family("Qwen Omni").items() if name != "thinker.lm_head.weight"} | talker
    case.put("base", base, tied)
    case.put("code", trained(base, 1), tied)
    case.merge(inputs={"untie": True})
    assert case.result.keys() == {*base, "thinker.lm_head.weight"}


def test_a_feed_forward_output_inside_a_layer_is_no_head(case: Case) -> None:
    inner = "model.transformer.blocks.0.ff_out.weight"
    base = {**family("OLMo"), inner: model()[MLP][:16].copy()}
    case.put("base", base)
    case.put("code", trained(base, 1))
    case.merge(inputs={"untie": True})
    assert case.result.keys() == base.keys()
    assert read_checkpoint(case.out)[inner].shape == (16, 12)
