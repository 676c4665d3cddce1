"""Agents that fit by their shapes and are none of this base: told by samples before anything is read."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import pytest

import agentmerge
from tests.symptoms.conftest import BF16, CONFIG, EMBED, HEAD, Case, model, tokenizer, trained, words

if TYPE_CHECKING:
    from agentmerge.tensors import Array

SHAPE = 48, 64
FOREIGN, TWIN, SHARED = "is hardly this base's", "are the same in all", "agents share changes to the bit"


def large(seed: int = 0, dtype: str = "BF16") -> dict[str, Array]:
    """A model whose matrices are large enough to be told from others, and norms that are alike in all models."""
    rng = np.random.default_rng(seed)
    found = {f"model.layers.{i}.mlp.up_proj.weight": rng.normal(0, 0.02, SHAPE) for i in range(4)}
    found["model.layers.0.input_layernorm.weight"] = np.ones(64)
    return {
        name: array.astype(np.float32).astype(BF16 if dtype == "BF16" else np.float32) for name, array in found.items()
    }


def tuned(base: dict[str, Array], seed: int, density: float = 0.2, size: float = 0.05) -> dict[str, Array]:
    """Trained apart from others: random changes, in proportion to the weights."""
    rng = np.random.default_rng(seed)
    return {
        name: (
            array.astype(np.float32)
            * (1 + size * rng.normal(0, 1, array.shape) * (rng.random(array.shape) < density)).astype(np.float32)
        ).astype(array.dtype)
        for name, array in base.items()
    }


def told(case: Case) -> list[str]:
    """What a check warns of, and that a merge and a probe warn of the same."""
    found = [finding.found for finding in case.check().findings if finding.severity == "warning"]
    recipe = case.recipe()
    for record in (case.merge(), agentmerge.probe(recipe)):
        assert [w for w in record.warnings if any(text in w for text in (FOREIGN, TWIN, SHARED))] == [
            w for w in record.warnings if any(text in w for text in found)
        ]
        assert all(any(text in w for w in record.warnings) for text in found)
    return found


@pytest.mark.parametrize(("density", "size"), [(0.03, 0.02), (0.5, 0.02), (1.0, 0.3)])
def test_agents_of_this_base_are_not_suspected(case: Case, density: float, size: float) -> None:
    """From RL's sparse small steps to more than full fine-tuning makes."""
    base = large()
    case.put("base", base)
    for seed, name in enumerate(("code", "memory", "tool")):
        case.put(name, tuned(base, seed + 1, density, size))
    assert told(case) == []


def test_an_agent_of_another_base_is_told(case: Case) -> None:
    base = large()
    case.put("base", base)
    case.put("code", tuned(base, 1))
    case.put("tool", tuned(large(9), 2))
    (text,) = told(case)
    assert text.startswith("agent 'tool'")
    assert FOREIGN in text
    assert "1.4 times as long as the base" in text


def test_where_every_agent_is_of_another_base_each_is_told_and_that_they_are_closer_to_each_other(case: Case) -> None:
    case.put("base", large(9))
    for seed, name in enumerate(("code", "tool")):
        case.put(name, tuned(large(), seed + 1))
    found = told(case)
    assert [sum(kind in text for text in found) for kind in (FOREIGN, SHARED)] == [2, 1]
    assert len(found) == 3


def test_a_base_and_an_agent_that_were_swapped_are_told(case: Case) -> None:
    base = large()
    case.put("base", tuned(base, 1, 0.3))
    case.put("code", base)
    case.put("memory", tuned(base, 2, 0.5))
    case.put("tool", tuned(base, 3, 0.3))
    (text,) = told(case)
    assert f"{SHARED}: of what code changed" in text
    (finding,) = case.check().findings
    assert "Is agent 'code' the base, and this base an agent (swapped)?" in finding.todo


def test_a_common_start_that_is_no_base_of_the_merge_is_told(case: Case) -> None:
    base = large()
    start = tuned(base, 1, 0.9)
    case.put("base", base)
    case.put("code", tuned(start, 2, 0.1))
    case.put("tool", tuned(start, 3, 0.1))
    (text,) = told(case)
    assert SHARED in text


@pytest.mark.parametrize("dtype", ["BF16", "F32"])
def test_one_agent_under_two_names_is_told_whatever_it_is_stored_in(case: Case, dtype: str) -> None:
    base = large()
    agent = tuned(base, 1)
    case.put("base", base)
    case.put("code", agent)
    case.put("tool", {name: array.astype(np.float32) if dtype == "F32" else array for name, array in agent.items()})
    (text,) = told(case)
    assert text.startswith("agent 'tool'")
    assert f"and agent 'code' {TWIN}" in text


def test_agents_that_are_stored_more_coarsely_than_the_base_share_no_training(case: Case) -> None:
    base = large(dtype="F32")
    case.put("base", base)
    for seed, name in enumerate(("code", "tool")):
        case.put(name, {n: array.astype(BF16) for n, array in tuned(base, seed + 1).items()})
    assert told(case) == []


def test_a_tensor_that_rules_leave_out_tells_nothing(case: Case) -> None:
    base = large()
    case.put("base", base)
    case.put("code", tuned(base, 1))
    other = {name: array for name, array in tuned(large(9), 2).items() if "layers.0" not in name}
    case.put("tool", {**tuned(base, 2), **other})
    skipped = [{"tensors": f"model.layers.{i}.*", "skip": "tool"} for i in (1, 2, 3)]
    assert any(FOREIGN in finding.found for finding in case.check().findings)
    assert not any(FOREIGN in finding.found for finding in case.check(rules=skipped).findings)


def test_nine_agents_are_compared_each_with_the_next(case: Case) -> None:
    base = large()
    case.put("base", base)
    for i in range(9):
        case.put(f"a{i}", tuned(base, i + 1, 0.05))
    assert told(case) == []
    case.put("a7", tuned(base, 1, 0.05))  # equal ones are found wherever they stand
    (text,) = told(case)
    assert f"and agent 'a0' {TWIN}" in text


QWEN = {"model_type": "qwen2", "architectures": ["Qwen2ForCausalLM"]}


def biased(tensors: dict[str, Array]) -> dict[str, Array]:
    """As Qwen2 has them."""
    return {**tensors, "model.layers.0.self_attn.q_proj.bias": np.ones(12, BF16)}


@pytest.mark.parametrize("inputs", [{}, {"extra": "ignore"}, {"extra": "ignore", "missing": "base"}])
def test_an_agent_of_another_family_is_named_first_and_no_setting_merges_it(case: Case, inputs: dict[str, str]) -> None:
    base = model()
    case.put("base", base)
    case.put("code", biased(trained(model(5, rows=20), 1)), QWEN)
    case.refused_early("agent 'code' is another model: model_type qwen2", inputs=inputs)
    (finding,) = [finding for finding in case.check(inputs=inputs).findings if finding.severity == "error"]
    assert "Use an agent of this base" in finding.todo
    assert "extra" not in finding.todo


def test_another_name_of_the_family_over_the_same_tensors_is_a_warning(case: Case) -> None:
    base = model()
    case.put("base", base)
    case.put("code", trained(base, 1), {"model_type": "mistral"})
    assert any("has model_type mistral, base has llama" in text for text in case.merge().warnings)


def test_a_text_model_and_one_inside_another_model_are_told_apart_by_their_tensors(case: Case) -> None:
    base = model()
    inner = {key: value for key, value in CONFIG.items() if key != "architectures"}
    outer = {"model_type": "qwen2_5_vl", "text_config": {**inner, "model_type": "qwen2_5_vl_text"}}
    case.put("base", {**base, "visual.patch.weight": np.ones((4, 4), BF16)}, outer)
    case.put("code", trained(base, 1), {"model_type": "qwen2"})
    case.refused("not all of the base's tensors", "--missing base")
    assert any("has model_type qwen2" in text for text in case.merge(inputs={"missing": "base"}).warnings)


def test_a_head_of_its_own_over_a_tied_base_is_told_by_a_check(case: Case) -> None:
    base = {name: array for name, array in model().items() if name != HEAD}
    case.put("base", base, {"tie_word_embeddings": True})
    agent = trained(base, 1)
    case.put("code", {**agent, HEAD: trained({HEAD: base[EMBED]}, 7)[HEAD]}, {"tie_word_embeddings": False})
    case.refused_early(f"{HEAD}: in agent 'code'", "differs from model.embed_tokens.weight", "--untie")
    found = case.check().findings
    assert any("--untie" in finding.todo for finding in found if finding.severity == "error")
    assert not any("repeats" in finding.found for finding in found)
    assert case.check(inputs={"untie": True}).ok
    case.merge(inputs={"untie": True})


def test_the_agent_that_gives_the_tokenizer_has_no_token_that_the_output_does_not_know(case: Case) -> None:
    base = model()
    case.put("base", base, **tokenizer(words(12)))
    case.put("code", trained(base, 1), **tokenizer(words(12), {"<tool>": 12}))
    case.put("tool", trained(base, 2), **tokenizer(words(12), {"<tool>": 12, "<think>": 13}))
    unknown = "the output does not know them"
    assert sum(unknown in text for text in case.merge().warnings) == 2
    (text,) = [text for text in case.merge(inputs={"tokenizer_from": "code"}).warnings if unknown in text]
    assert "agent 'tool' has 1 tokens that the tokenizer of agent 'code' lacks: '<think>'" in text
    assert not any(unknown in text for text in case.merge(inputs={"tokenizer_from": "tool"}).warnings)
