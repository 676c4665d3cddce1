"""Embeddings of other sizes, new tokens, and tokens in another order."""

from __future__ import annotations

import json

import numpy as np
import pytest

from agentmerge.testing import read_checkpoint
from tests.symptoms.conftest import BF16, EMBED, HEAD, MLP, Case, model, ram, same, tokenizer, trained, words

PAIRS = [(152064, 151936), (151936, 151665), (152064, 151665), (128256, 128264)]


def resized(tensors, rows, seed=9):
    """As resize_token_embeddings does: rows cut off, or random ones put on."""
    rng = np.random.default_rng(seed)
    found = dict(tensors)
    for name in (EMBED, HEAD):
        old = tensors[name]
        new = rng.normal(0, 0.5, (max(rows - len(old), 0), *old.shape[1:])).astype(np.float32).astype(old.dtype)
        found[name] = np.concatenate([old, new])[:rows]
    return found


def small(pair):
    """The pair in miniature: the same order and parity, a few rows apart."""
    low = min(pair)
    return tuple(12 + (rows - low) // 8 for rows in pair)


@pytest.mark.parametrize("pair", PAIRS)
def test_padded_and_unpadded_embeddings_stop_with_both_shapes_and_the_way_on(case: Case, pair) -> None:
    ours, theirs = small(pair)
    base = model(rows=ours)
    case.put("base", base, {"vocab_size": ours})
    case.put("code", resized(trained(base, 1), theirs), {"vocab_size": theirs})
    shapes = f"{EMBED}: agent 'code' has shape [{theirs}, 12], base has [{ours}, 12]"
    message = case.refused_early(shapes, "--vocab base-rows")
    assert ("--vocab union" in message) == (theirs > ours)


@pytest.mark.parametrize("pair", PAIRS)
@pytest.mark.parametrize("method", ["ram", "ram+", "task_arithmetic"])
def test_base_rows_keeps_the_bases_rows_and_an_agents_missing_ones_are_unchanged(case: Case, pair, method) -> None:
    ours, theirs = small(pair)
    base, common = model(rows=ours), min(ours, theirs)
    code, tool = trained(base, 1), trained(base, 2)
    case.put("base", base, {"vocab_size": ours})
    case.put("tool", tool, {"vocab_size": ours})
    case.put("code", resized(code, theirs), {"vocab_size": theirs})
    record = case.merge(method, inputs={"vocab": "base-rows"})
    found = case.result
    whole = {**code, **{n: np.concatenate([code[n][:common], base[n][common:]]) for n in (EMBED, HEAD)}}
    case.put("code", whole, {"vocab_size": ours})
    assert case.merge(method).survey == record.survey
    for name, array in case.result.items():
        same(found[name], array)
    assert found[EMBED].shape == (ours, 12)
    assert case.config["vocab_size"] == ours
    assert any(f"agent 'code' has {theirs} rows, the base {ours}" in warning for warning in record.warnings)


def test_a_bfloat16_agent_without_the_padding_over_a_float32_base_changes_none_of_it(case: Case) -> None:
    """The base's rows keep every bit; rounded to the agent's dtype they would look changed."""
    base = model(rows=20, dtype="F32")
    code = {name: array.astype(BF16) for name, array in trained(base, 1).items()}
    case.put("base", base, {"vocab_size": 20})
    case.put("code", resized(code, 14), {"vocab_size": 14})
    case.merge(inputs={"vocab": "base-rows"})
    assert case.result[EMBED][14:].tobytes() == base[EMBED][14:].tobytes()


def test_union_keeps_the_added_rows_to_the_bit_with_the_agents_tokenizer(case: Case) -> None:
    base = model()
    code, tool = trained(resized(base, 19), 1), trained(base, 2)
    case.put("base", base, **tokenizer(words(16)))
    case.put("code", code, {"vocab_size": 19}, **tokenizer(words(16), {"<a>": 16, "<b>": 17, "<c>": 18}))
    case.put("tool", tool, **tokenizer(words(16)))
    message = case.refused_early("'<a>', '<b>', '<c>'", "--vocab union")
    assert "3 tokens that the base lacks" in message
    for method in ("ram", {"name": "ram+", "rescale": 0.5}, {"name": "task_arithmetic", "scale": 0.3}):
        record = case.merge(method, inputs={"vocab": "union"})
        for name in (EMBED, HEAD):
            assert case.result[name].shape == (19, 12)
            assert case.result[name][16:].tobytes() == code[name][16:].tobytes()
        assert case.config["vocab_size"] == 19
        assert "<c>" in (case.out / "tokenizer.json").read_text()
        assert any("3 rows of" in w and "are taken from agent 'code'" in w for w in record.warnings)
    case.merge("ram", inputs={"vocab": "union"})
    same(case.result[EMBED][:16], ram(base[EMBED], code[EMBED][:16], tool[EMBED]))


def test_union_sets_the_vocabulary_inside_a_multimodal_config(case: Case) -> None:
    base = model()
    nested = {"text_config": {"vocab_size": 16}, "vocab_size": None}
    case.put("base", base, nested)
    case.put("code", resized(trained(base, 1), 19), nested)
    case.merge(inputs={"vocab": "union"})
    assert case.config["text_config"]["vocab_size"] == 19


def test_union_takes_tokens_that_an_agent_put_into_the_padding(case: Case) -> None:
    """Qwen's embeddings have more rows than tokens: new tokens need no new rows."""
    base = model()
    code, tool = trained(base, 1, density=1.0), trained(base, 2)
    case.put("base", base, **tokenizer(words(12)))
    case.put("code", code, **tokenizer(words(12), {"<tool>": 12, "</tool>": 13}))
    case.put("tool", tool, **tokenizer(words(12)))
    record = case.merge({"name": "ram+", "rescale": 0.5})
    assert any("2 tokens that the tokenizer of the base lacks: '</tool>', '<tool>'" in w for w in record.warnings)
    assert "<tool>" not in (case.out / "tokenizer.json").read_text()
    case.merge({"name": "ram+", "rescale": 0.5}, inputs={"vocab": "union"})
    assert case.result[EMBED][12:14].tobytes() == code[EMBED][12:14].tobytes()
    assert "<tool>" in (case.out / "tokenizer.json").read_text()
    assert case.result[EMBED].shape == (16, 12)


def test_union_with_a_bias_on_the_head_extends_it_too(case: Case) -> None:
    base = {**model(), "lm_head.bias": np.arange(16, dtype=np.float32)}
    code = {**resized(base, 18), "lm_head.bias": np.arange(18, dtype=np.float32) + 1}
    case.put("base", base)
    case.put("code", code, {"vocab_size": 18})
    case.merge(inputs={"vocab": "union"})
    assert case.result["lm_head.bias"].tolist() == [*range(1, 17), 17, 18]


def test_union_of_two_agents_that_both_added_rows_is_refused_with_the_reason(case: Case) -> None:
    base = model()
    case.put("base", base)
    case.put("code", resized(trained(base, 1), 18), {"vocab_size": 18})
    case.put("tool", resized(trained(base, 2), 18, seed=4), {"vocab_size": 18})
    case.refused_early("no common ancestor", "code, tool", inputs={"vocab": "union"})


def test_union_without_any_new_row_is_as_strict(case: Case) -> None:
    base = model()
    case.put("base", base, **tokenizer(words(16)))
    case.put("code", trained(base, 1), **tokenizer(words(16)))
    case.merge(inputs={"vocab": "union"})
    found = case.result
    case.merge()
    for name, array in case.result.items():
        same(found[name], array)


def test_a_permuted_vocabulary_of_the_same_size_stops_the_merge(case: Case) -> None:
    base = model()
    swapped = [*words(14), "w15", "w14"]
    case.put("base", base, **tokenizer(words(16)))
    case.put("code", trained(base, 1), **tokenizer(swapped))
    message = case.refused_early("2 tokens under other ids", "'w15' at id 14 (the base has it at id 15)")
    assert "expected the same ids" in message
    for mode in ("base-rows", "union"):
        case.refused("under other ids", inputs={"vocab": mode})


def test_agents_in_another_order_than_each_other_stop_the_merge_where_the_base_has_no_tokenizer(case: Case) -> None:
    base = model()
    case.put("base", base)
    case.put("code", trained(base, 1), **tokenizer(words(16)))
    case.put("tool", trained(base, 2), **tokenizer(words(16)[::-1]))
    case.refused_early("agent 'tool' has 16 tokens under other ids than agent 'code'")


def test_another_token_in_the_place_of_one_stops_the_merge(case: Case) -> None:
    base = model()
    case.put("base", base, **tokenizer(words(16)))
    case.put("code", trained(base, 1), **tokenizer([*words(15), "other"]))
    case.refused_early("'other' at id 15 (the base has 'w15' there)")


def test_a_permuted_vocabulary_is_fine_where_rules_take_embedding_and_head_from_the_base(case: Case) -> None:
    base = model()
    case.put("base", base, **tokenizer(words(16)))
    case.put("code", trained(base, 1), **tokenizer(words(16)[::-1]))
    rules = [{"tensors": "*embed_tokens*", "take": "base"}, {"tensors": "lm_head*", "skip": "code"}]
    case.merge(rules=rules)
    assert case.result[EMBED].tobytes() == base[EMBED].tobytes()
    assert case.check(rules=rules).ok


def test_other_row_counts_are_fine_where_rules_take_embedding_and_head_from_the_base(case: Case) -> None:
    base = model()
    case.put("base", base)
    case.put("code", resized(trained(base, 1), 20), {"vocab_size": 20})
    rules = [{"tensors": name, "take": "base"} for name in (EMBED, HEAD)]
    case.merge(rules=rules)
    assert case.result[HEAD].tobytes() == base[HEAD].tobytes()


def test_an_agent_that_renamed_a_reserved_token_is_merged_and_told(case: Case) -> None:
    base = model()
    case.put("base", base, **tokenizer([*words(15), "<|reserved_special_token_0|>"]))
    case.put("code", trained(base, 1), **tokenizer([*words(15), "<tool>"]))
    assert any("gives 1 spare tokens" in w and "tokenizer_from: code" in w for w in case.merge().warnings)


def test_vocab_json_with_added_tokens_counts_as_a_tokenizer(case: Case) -> None:
    base = model()
    plain = {"vocab.json": json.dumps({w: i for i, w in enumerate(words(15))}).encode()}
    case.put("base", base, **plain, **{"added_tokens.json": b'{"<x>": 15}'})
    decoder = {"tokenizer_config.json": b'{"added_tokens_decoder": {"15": {"content": "<y>"}}}'}
    case.put("code", trained(base, 1), **plain, **decoder)
    case.refused_early("'<y>' at id 15 (the base has '<x>' there)")


def test_a_unigram_vocabulary_is_compared_by_position(case: Case) -> None:
    def unigram(tokens):
        return {"tokenizer.json": json.dumps({"model": {"vocab": [[t, -1.0] for t in tokens]}}).encode()}

    base = model()
    case.put("base", base, **unigram(words(16)))
    case.put("code", trained(base, 1), **unigram([*words(14), "w15", "w14"]))
    case.refused_early("under other ids")


@pytest.mark.parametrize("content", [b"{", b"[]", b'{"model": 3}', b'{"model": {"vocab": {"a": "x"}}}', b"{}"])
def test_a_broken_tokenizer_is_named(case: Case, content: bytes) -> None:
    base = model()
    case.put("base", base, **tokenizer(words(16)))
    case.put("code", trained(base, 1), **{"tokenizer.json": content})
    case.refused_early("code/tokenizer.json", "Fetch the file again")


def test_the_tokenizer_of_an_agent_with_more_tokens_than_rows_is_refused(case: Case) -> None:
    base = model()
    case.put("base", base, **tokenizer(words(16)))
    case.put("code", resized(trained(base, 1), 18), {"vocab_size": 18}, **tokenizer(words(18)))
    inputs = {"vocab": "base-rows", "tokenizer_from": "code"}
    case.refused_early("ids up to 17, the output has 16 rows", "--vocab union", inputs=inputs)


def test_the_tokenizer_of_one_agent_must_agree_with_the_other_agents_rows(case: Case) -> None:
    base = model()
    case.put("base", base, **tokenizer(words(14)))
    case.put("code", trained(base, 1), **tokenizer(words(14), {"<code>": 14}))
    case.put("tool", trained(base, 2), **tokenizer(words(14), {"<tool>": 14}))
    assert case.merge().warnings
    case.refused_early("tokens under other ids than agent 'code'", inputs={"tokenizer_from": "code"})


def test_the_tokenizer_of_an_agent_that_has_none_is_refused(case: Case) -> None:
    base = model()
    case.put("base", base, **tokenizer(words(16)))
    case.put("code", trained(base, 1))
    case.refused_early("agent 'code'", "has no tokenizer files", inputs={"tokenizer_from": "code"})


def test_a_config_whose_vocabulary_is_not_the_embeddings_is_told(case: Case) -> None:
    base = model()
    case.put("base", base, {"vocab_size": 99})
    case.put("code", trained(base, 1))
    assert any("vocab_size 99, its tensors have 16 rows" in w for w in case.merge().warnings)


def test_rows_of_another_width_are_told_as_a_shape(case: Case) -> None:
    base = model()
    code = trained(base, 1)
    code[EMBED] = np.zeros((18, 10), BF16)
    case.put("base", base)
    case.put("code", code)
    for mode in ("strict", "base-rows", "union"):
        case.refused("has shape [18, 10]", inputs={"vocab": mode})


def test_importance_of_an_agent_with_fewer_rows_counts_nothing_for_the_rest(case: Case) -> None:
    base = model()
    agents = {"code": resized(trained(base, 1), 13), "tool": trained(base, 2)}
    case.put("base", base)
    recipe_agents = {}
    for name, tensors in agents.items():
        path = case.put(name, tensors, {"vocab_size": len(tensors[EMBED])})
        importance = {n: np.ones(a.shape, np.float32) for n, a in tensors.items()}
        folder = case.put(f"importance-{name}", importance)
        recipe_agents[name] = {"source": str(path), "importance": str(folder)}
    case.agents = recipe_agents
    case.merge("fisher", inputs={"vocab": "base-rows"})
    tool = read_checkpoint(case.folder / "tool")
    found = case.result[EMBED][13:].astype(np.float32)
    middle = base[EMBED][13:].astype(np.float32)
    assert np.isfinite(found).all()
    assert np.abs(found - middle).max() <= np.abs(tool[EMBED][13:].astype(np.float32) - middle).max()
    assert case.result[MLP].shape == base[MLP].shape
