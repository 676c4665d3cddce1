"""Heads that are the embedding, repeat it, or contradict the config."""

from __future__ import annotations

import numpy as np
import pytest

from agentmerge.testing import read_checkpoint
from tests.symptoms.conftest import EMBED, HEAD, Case, model, ram, same, trained

TIED = {"tie_word_embeddings": True}


def headless(tensors):
    return {name: array for name, array in tensors.items() if name != HEAD}


def with_copy(tensors):
    return {**headless(tensors), HEAD: tensors[EMBED].copy()}


def test_a_tied_model_without_any_head_merges_to_one_without(case: Case) -> None:
    base = headless(model())
    case.put("base", base, TIED)
    case.put("code", trained(base, 1), TIED)
    case.put("tool", trained(base, 2), TIED)
    case.merge()
    assert HEAD not in case.result
    assert case.config["tie_word_embeddings"] is True
    agents = [read_checkpoint(case.folder / name)[EMBED] for name in ("code", "tool")]
    same(case.result[EMBED], ram(base[EMBED], *agents))


@pytest.mark.parametrize("flag", [True, False, None])
def test_an_agent_saved_with_an_untied_copy_of_the_embedding_merges_as_if_it_had_none(case: Case, flag) -> None:
    base = headless(model())
    agent = trained(base, 1)
    case.put("base", base, TIED)
    case.put("code", agent, TIED)
    expected = case.merge("ram+")
    before = case.result
    case.put("code", with_copy(agent), {"tie_word_embeddings": flag})
    record = case.merge("ram+")
    assert list(case.result) == list(before)
    for name, array in before.items():
        same(case.result[name], array)
    assert record.survey == expected.survey
    assert any(f"{HEAD} repeats {EMBED}" in warning for warning in record.warnings)


def test_a_head_of_another_width_of_number_that_repeats_the_embedding_is_dropped_too(case: Case) -> None:
    base = headless(model())
    agent = trained(base, 1)
    case.put("base", base, TIED)
    case.put("code", {**agent, HEAD: agent[EMBED].astype(np.float32)}, TIED)
    case.merge()
    assert HEAD not in case.result


def test_a_base_that_says_nothing_of_tying_and_has_no_head_is_tied(case: Case) -> None:
    """Gemma's config.json leaves the flag to the architecture."""
    base = headless(model())
    case.put("base", base, {"tie_word_embeddings": None})
    case.put("code", with_copy(trained(base, 1)), {"tie_word_embeddings": None})
    case.merge()
    assert HEAD not in case.result


def test_a_head_that_was_trained_apart_stops_the_merge_and_untie_keeps_it(case: Case) -> None:
    base = headless(model())
    agent = with_copy(trained(base, 1))
    agent[HEAD] = trained({HEAD: base[EMBED]}, 7)[HEAD]
    case.put("base", base, TIED)
    case.put("code", agent, TIED)
    case.put("tool", trained(base, 2), TIED)
    case.refused(f"{HEAD}: in agent 'code'", "differs from model.embed_tokens.weight", "--untie")
    case.merge(inputs={"untie": True})
    tool = read_checkpoint(case.folder / "tool")[EMBED]
    same(case.result[HEAD], ram(base[EMBED], agent[HEAD], tool))
    same(case.result[EMBED], ram(base[EMBED], agent[EMBED], tool))
    assert case.config["tie_word_embeddings"] is False


def test_untie_gives_a_head_even_where_no_source_stores_one(case: Case) -> None:
    base = headless(model())
    case.put("base", base, TIED)
    case.put("code", trained(base, 1), TIED)
    case.merge(inputs={"untie": True})
    same(case.result[HEAD], case.result[EMBED])
    assert case.config["tie_word_embeddings"] is False


def test_untie_sets_the_flag_of_the_language_model_inside_a_multimodal_config(case: Case) -> None:
    base = headless(model())
    nested = {"text_config": {"vocab_size": 16}, "tie_word_embeddings": True}
    case.put("base", base, nested)
    case.put("code", trained(base, 1), nested)
    case.merge(inputs={"untie": True})
    assert case.config["text_config"]["tie_word_embeddings"] is False
    assert case.config["tie_word_embeddings"] is False


def test_a_tied_base_with_a_redundant_head_keeps_both_equal_and_counts_them_once(case: Case) -> None:
    base = with_copy(model())
    agent = with_copy(trained(base, 1))
    case.put("base", base, TIED)
    case.put("code", agent, TIED)
    case.put("tool", headless(trained(base, 2)), TIED)
    record = case.merge("ram+")
    same(case.result[HEAD], case.result[EMBED])
    assert record.survey.elements == sum(array.size for array in headless(base).values())


def test_a_base_whose_redundant_head_is_another_tensor_is_refused(case: Case) -> None:
    base = model()
    case.put("base", base, TIED)
    case.put("code", trained(base, 1), TIED)
    case.refused("in base", "expected equal tensors", "correct the config")
    case.merge(inputs={"untie": True})
    assert case.config["tie_word_embeddings"] is False
    same(case.result[HEAD], ram(base[HEAD], read_checkpoint(case.folder / "code")[HEAD]))


def test_a_base_that_says_untied_and_has_no_head_is_told_before_anything_is_read(case: Case) -> None:
    base = headless(model())
    case.put("base", base)
    case.put("code", trained(base, 1))
    case.refused_early("tie_word_embeddings is false", "expected a head", "--untie")
    case.merge(inputs={"untie": True})
    assert HEAD in case.result


def test_a_base_that_makes_no_text_needs_no_head(case: Case) -> None:
    base = headless(model())
    config = {"architectures": ["LlamaModel"]}
    case.put("base", base, config)
    case.put("code", trained(base, 1), config)
    case.merge()
    assert HEAD not in case.result


def test_an_agent_that_ties_its_head_over_an_untied_base_is_read_from_its_embedding(case: Case) -> None:
    base = with_copy(model())
    agent = headless(trained(base, 1))
    case.put("base", base)
    case.put("code", agent, TIED)
    record = case.merge()
    same(case.result[HEAD], ram(base[HEAD], agent[EMBED]))
    assert any("ties its head" in warning for warning in record.warnings)


def test_an_agent_that_says_tied_but_has_another_head_is_told(case: Case) -> None:
    base = model()
    case.put("base", base)
    case.put("code", trained(base, 1), TIED)
    case.refused(f"{HEAD}: in agent 'code'", "expected equal tensors")


def test_an_agent_that_says_untied_but_lacks_the_head_is_told(case: Case) -> None:
    base = headless(model())
    case.put("base", base, TIED)
    case.put("code", trained(base, 1))
    assert any("is false in its config.json, but it stores no" in w for w in case.merge().warnings)


def test_an_untied_base_does_not_guess_the_head_of_an_agent_that_lost_it(case: Case) -> None:
    base = model()
    case.put("base", base)
    case.put("code", headless(trained(base, 1)))
    case.refused_early("lacks 1: lm_head.weight")


def test_heads_under_the_old_multimodal_names_are_found(case: Case) -> None:
    inner = {"language_model." + name: array for name, array in headless(model()).items()}
    case.put("base", inner, TIED)
    agent = trained(inner, 1)
    agent["language_model.lm_head.weight"] = agent["language_model." + EMBED].copy()
    case.put("code", agent, TIED)
    case.merge()
    assert list(case.result) == list(inner)
    case.merge(inputs={"untie": True})
    assert "language_model.lm_head.weight" in case.result


def test_check_says_that_equality_is_seen_only_when_the_data_is_read(case: Case) -> None:
    base = headless(model())
    case.put("base", base, TIED)
    case.put("code", with_copy(trained(base, 1)), TIED)
    notes = [finding.found for finding in case.check().findings if finding.severity == "note"]
    assert any("is checked when they are read" in note for note in notes)


def test_a_tied_head_stored_in_another_dtype_gets_that_of_the_embedding(case: Case) -> None:
    base = headless(model())
    agents = [trained(base, seed) for seed in (1, 2)]
    for name, tensors in zip(("base", "code", "tool"), (base, *agents), strict=True):
        case.put(name, {**tensors, HEAD: tensors[EMBED].astype(np.float32)}, TIED)
    case.merge()
    expected = ram(base[EMBED], *(agent[EMBED] for agent in agents))
    same(case.result[EMBED], expected)
    same(case.result[HEAD], expected)
