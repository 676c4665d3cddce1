"""All of a tokenizer comes from one source, whatever its files are called, or a merge says what it can't tell."""

from __future__ import annotations

import json

import pytest

from tests.symptoms.conftest import Case, model, tokenizer, trained, words

FILES = [
    "tokenizer.json", "tokenizer.model", "tokenizer_config.json", "tiktoken.model", "qwen.tiktoken",
    "o200k_base.tiktoken",
    "bpe.codes", "codes.txt", "vocab.txt", "vocab.bpe", "vocab.json", "merges.txt", "spiece.model",
    "sentencepiece.bpe.model",
    "source.spm", "target.spm", "dict.txt", "tekken.json", "special_tokens_map.json", "added_tokens.json",
    "tokenization_own.py", "chat_template.jinja", "additional_chat_templates/tool.jinja", "tokenizer/vocab.txt",
    "tokenizer/anything.json", "unigram.model", "clip_vocab.json", "normalizer.json",
]  # fmt: skip


def pair(case: Case, base, code) -> None:
    case.put("base", model(), **base)
    case.put("code", trained(model(), 1), **code)


@pytest.mark.parametrize("name", FILES)
def test_a_file_of_a_tokenizer_comes_from_the_agent_that_gives_it(case: Case, name: str) -> None:
    plain = tokenizer(words(16))
    content = plain.get(name, b"{}" if name.endswith("json") else b"old")
    new = content if name == "tokenizer.json" else b'{"a": 9}' if name.endswith("json") else b"new"
    pair(case, {**plain, name: content}, {**plain, name: new})
    case.merge(inputs={"tokenizer_from": "code"})
    assert (case.out / name).read_bytes() == new


@pytest.mark.parametrize("name", [name for name in FILES if not name.startswith("tokenizer")])
def test_and_none_of_the_bases_stays_beside_it(case: Case, name: str) -> None:
    pair(case, {name: b"{}"}, tokenizer(words(16)))
    case.merge(inputs={"tokenizer_from": "code"})
    assert not (case.out / name).exists()


@pytest.mark.parametrize(
    ("config", "name"),
    [
        ({"vocab_file": "words.dat"}, "words.dat"),
        ({"auto_map": {"AutoTokenizer": ["words_of_ours.Words", None]}}, "words_of_ours.py"),
    ],
)
def test_what_a_tokenizer_config_names_is_the_tokenizers(case: Case, config, name: str) -> None:
    files = {**tokenizer(words(16)), "tokenizer_config.json": json.dumps(config).encode()}
    pair(case, {**files, name: b"old"}, {**files, name: b"new"})
    case.merge(inputs={"tokenizer_from": "code"})
    assert (case.out / name).read_bytes() == b"new"


@pytest.mark.parametrize("name", ["words.dat", "letters.txt", "lexicon.json", "utils.py"])
def test_a_file_that_may_be_the_tokenizers_and_differs_is_refused(case: Case, name: str) -> None:
    plain = tokenizer(words(16))
    pair(case, {**plain, name: b"[1]"}, {**plain, name: b"[2]"})
    case.merge()
    message = case.refused_early(name, "does not tell whether it is the tokenizer's", inputs={"tokenizer_from": "code"})
    assert "the same file in both" in message
    (case.folder / "code" / name).write_bytes(b"[1]")
    case.merge(inputs={"tokenizer_from": "code"})


MODELS = ["LICENSE", "NOTICE.txt", "modeling_own.py", "configuration_own.py", "generation_config.json", "notes.md",
          "preprocessor_config.json", "loss.png"]  # fmt: skip


@pytest.mark.parametrize("name", MODELS)
def test_a_file_of_the_model_may_differ_and_stays_the_bases(case: Case, name: str) -> None:
    plain = tokenizer(words(16))
    pair(case, {**plain, name: b"{}"}, {**plain, name: b'{"a": 1}'})
    case.merge(inputs={"tokenizer_from": "code"})
    assert (case.out / name).read_bytes() == b"{}"


def test_union_takes_all_of_the_agents_tokenizer_too(case: Case) -> None:
    pair(
        case, {**tokenizer(words(16)), "bpe.codes": b"old"}, {**tokenizer(words(15), {"new": 15}), "bpe.codes": b"new"}
    )
    (case.folder / "base" / "tokenizer.json").write_bytes(tokenizer(words(15))["tokenizer.json"])
    case.merge(inputs={"vocab": "union"})
    assert (case.out / "bpe.codes").read_bytes() == b"new"
