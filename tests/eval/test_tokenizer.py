"""Texts are cut by a model's own tokens and lose nothing; chats are written as transformers writes them."""

from __future__ import annotations

import json
from itertools import pairwise
from typing import TYPE_CHECKING, Any

import pytest

from agentmerge.errors import EvalError
from agentmerge.eval.request import Message
from agentmerge.eval.tokenizer import TextTokenizer

if TYPE_CHECKING:
    from pathlib import Path

TEXT = "The naïve river, Zoë said, runs 1,887 miles past 数学 and café 🎉👩‍👩‍👧 to the sea.\n\nDocument 2:\n" * 40
CHAT = [
    Message("system", "Be {brief}."),
    Message("user", "Hi <b>\n"),
    Message("assistant", "Yes"),
    Message("user", "x"),
]
TEMPLATES = {
    "chatml": """{%- for message in messages %}
{{- '<|im_start|>' + message.role + '\\n' + message.content + '<|im_end|>\\n' }}
{%- endfor %}
{%- if add_generation_prompt %}
    {{- '<|im_start|>assistant\\n' }}
{%- endif %}""",
    "json": """{{ bos_token }}{% for m in messages %}{{ m | tojson }}
{% if loop.last %}{{ eos_token }}{% endif %}{% endfor %}""",
    "controls": """{% for m in messages %}{% if m.role == 'system' %}{% continue %}{% endif %}
  {{ m.content }}
{% endfor %}""",
    "tools": "{% if tools %}T{% elif documents is none %}N{% endif %}{{ messages | length }}",
}


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Of a small byte-level tokenizer, as Qwen's and Llama's are."""
    tokenizers: Any = pytest.importorskip("tokenizers", reason="transformers brings it")
    made = tokenizers.Tokenizer(tokenizers.models.BPE())
    made.pre_tokenizer = tokenizers.pre_tokenizers.ByteLevel(add_prefix_space=False)
    made.decoder = tokenizers.decoders.ByteLevel()
    trainer = tokenizers.trainers.BpeTrainer(
        vocab_size=400, special_tokens=["<s>", "</s>"], initial_alphabet=tokenizers.pre_tokenizers.ByteLevel.alphabet()
    )
    made.train_from_iterator([TEXT], trainer)
    made.enable_truncation(7)  # what some models' files carry, and what must not cut ours
    made.enable_padding(length=9)
    made.save(str(tmp_path / "tokenizer.json"))
    return tmp_path


def write_config(folder: Path, **fields: Any) -> None:
    config = {"bos_token": "<s>", "eos_token": {"content": "</s>"}, **fields}
    (folder / "tokenizer_config.json").write_text(json.dumps(config))


@pytest.mark.slow
@pytest.mark.parametrize("size", [1, 7, 50, 10**6])
def test_pieces_have_their_tokens_and_are_the_text_together(folder: Path, size: int) -> None:
    tokenizer = TextTokenizer(folder)
    pieces = [TEXT[start:end] for start, end in pairwise(tokenizer.cuts(TEXT, size))]
    assert "".join(pieces) == TEXT
    assert len(pieces) == -(-tokenizer.count(TEXT) // size)
    if size >= 50:
        assert all(size - 4 <= tokenizer.count(piece) <= size + 4 for piece in pieces[:-1])


@pytest.mark.slow
def test_a_text_loses_its_middle_only_where_it_is_too_long(folder: Path) -> None:
    tokenizer = TextTokenizer(folder)
    total = tokenizer.count(TEXT)
    assert tokenizer.without_middle(TEXT, total) == TEXT
    for most in (100, 101):
        cut = tokenizer.without_middle(TEXT, most)
        assert abs(tokenizer.count(cut) - most) <= 4
        assert TEXT.startswith(cut[:60])
        assert TEXT.endswith(cut[-60:])
    assert tokenizer.counts([TEXT, "", "a"]) == [total, 0, 1]


@pytest.mark.slow
@pytest.mark.parametrize("template", TEMPLATES)
def test_a_chat_is_written_as_transformers_writes_it(folder: Path, template: str) -> None:
    transformers: Any = pytest.importorskip("transformers", reason="the extra importance brings it")
    write_config(folder, chat_template=TEMPLATES[template])
    theirs = transformers.PreTrainedTokenizerFast(
        tokenizer_file=str(folder / "tokenizer.json"), bos_token="<s>", eos_token="</s>"
    )
    theirs.chat_template = TEMPLATES[template]
    chat = [{"role": message.role, "content": message.content} for message in CHAT]
    wanted = theirs.apply_chat_template(chat, tokenize=False, add_generation_prompt=True)
    assert TextTokenizer(folder).chat(CHAT) == wanted


def test_the_template_is_found_where_models_keep_it(tmp_path: Path) -> None:
    (tmp_path / "tokenizer.json").write_text("{}")
    assert not TextTokenizer(tmp_path).has_chat_template
    with pytest.raises(EvalError, match="no chat template"):
        TextTokenizer(tmp_path).chat(CHAT)
    named = [{"name": "tool_use", "template": "t"}, {"name": "default", "template": "{{ messages[0].role }}"}]
    write_config(tmp_path, chat_template=named)
    assert TextTokenizer(tmp_path / "tokenizer.json").chat(CHAT) == "system"
    (tmp_path / "chat_template.jinja").write_text("own")
    assert TextTokenizer(tmp_path).chat(CHAT) == "own"


@pytest.mark.parametrize("template", ["{{ raise_exception('no system') }}", "{{ messages.append(1) }}", "{% if %}"])
def test_a_template_that_fails_or_is_none_is_told(tmp_path: Path, template: str) -> None:
    (tmp_path / "tokenizer.json").write_text("{}")
    write_config(tmp_path, chat_template=template)
    with pytest.raises(EvalError, match="its chat template fails"):
        TextTokenizer(tmp_path).chat(CHAT)


def test_the_day_is_not_part_of_a_prompt(tmp_path: Path) -> None:
    (tmp_path / "tokenizer.json").write_text("{}")
    write_config(
        tmp_path, chat_template="{% if strftime_now is defined %}{{ strftime_now('%d') }}{% else %}fixed{% endif %}"
    )
    assert TextTokenizer(tmp_path).chat(CHAT) == "fixed"


def test_a_missing_tokenizer_is_told_before_anything_is_asked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda name: name)
    assert [problem.found for problem in TextTokenizer.problems(None, "memory")] == ["memory: no tokenizer is known"]
    (absent,) = TextTokenizer.problems(str(tmp_path), "memory")
    assert absent.found == f"memory: no tokenizer.json in {tmp_path}"
    (tmp_path / "tokenizer.json").write_text("{}")
    assert TextTokenizer.problems(str(tmp_path), "memory") == []
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    assert TextTokenizer.problems(str(tmp_path), "memory")[0].todo == "pip install tokenizers."


@pytest.mark.parametrize(
    ("begins", "fields", "once"),
    [
        (True, {}, True),
        (False, {}, False),
        (False, {"add_bos_token": True}, True),
        (True, {"add_bos_token": False}, False),
    ],
)
def test_a_chat_as_text_leaves_the_beginning_to_the_tokenizer_where_it_adds_one(
    folder: Path, begins: bool, fields: dict[str, Any], once: bool
) -> None:
    write_config(folder, chat_template="{{ bos_token }}{{ messages[0].content }}", **fields)
    if begins:
        tokenizers: Any = pytest.importorskip("tokenizers")
        made = tokenizers.Tokenizer.from_file(str(folder / "tokenizer.json"))
        made.post_processor = tokenizers.processors.TemplateProcessing(single="<s> $A", special_tokens=[("<s>", 0)])
        made.save(str(folder / "tokenizer.json"))
    found = TextTokenizer(folder)
    user = [Message("user", "Hi <s>")]
    assert found.chat(user) == "<s>Hi <s>"
    assert found.chat_as_text(user) == ("Hi <s>" if once else "<s>Hi <s>")
