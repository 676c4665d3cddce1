"""Prompts and responses: what is read, what is refused by file and line, how they become tokens."""

import json
from pathlib import Path

import pytest

from agentmerge.errors import MergeError, RecipeError, SourceError, SourceNotFoundError
from agentmerge.importance.data import Example, in_turn, read_examples, sha256_of
from agentmerge.importance.tokens import encode, encode_one


class Letters:
    """A tokenizer whose tokens are letters, with or without a token for the beginning of text."""

    chat_template = "present"

    def __init__(self, bos=None):
        self.bos_token_id = bos

    def __call__(self, text, *, add_special_tokens):
        head = [self.bos_token_id] if add_special_tokens and self.bos_token_id is not None else []
        return {"input_ids": head + [ord(letter) for letter in text if letter != "~"]}

    def apply_chat_template(self, conversation, *, tokenize, add_generation_prompt):
        assert not tokenize
        assert add_generation_prompt
        return "".join(f"<{message['role']}>{message['content']}" for message in conversation) + "<assistant>"


def written(tmp_path, *lines):
    path = tmp_path / "data.jsonl"
    path.write_bytes(b"".join(line if isinstance(line, bytes) else line.encode() + b"\n" for line in lines))
    return path


def tokens(text):
    return tuple(ord(letter) for letter in text)


def some(count):
    return [Example("ask", "answer", line) for line in range(1, count + 1)]


def test_plain_and_chat_prompts_are_read_with_their_lines(tmp_path):
    chat = [{"role": "user", "content": "hi"}]
    path = written(
        tmp_path,
        json.dumps({"prompt": "ask", "response": "answer", "reward": 1.0}),
        "",
        json.dumps({"prompt": chat, "response": "hé"}),
    )
    assert list(read_examples(path)) == [Example("ask", "answer", 1), Example(tuple(chat), "hé", 3)]


def test_a_byte_order_mark_is_no_part_of_the_data(tmp_path):
    path = written(tmp_path, b'\xef\xbb\xbf{"prompt": "a", "response": "b"}\n')
    assert next(read_examples(path)).prompt == "a"


def test_lines_after_the_last_one_wanted_are_not_looked_at(tmp_path):
    path = written(tmp_path, '{"prompt": "a", "response": "b"}', "broken")
    assert next(read_examples(path)).line == 1


@pytest.mark.parametrize(
    ("line", "told"),
    [
        ("{'prompt': 'a'}", "not JSON"),
        ('{"prompt": "a", "response": ', "not JSON"),
        ("[" * 100_000, "not JSON"),
        ("[1, 2]", "expected {"),
        ('{"prompt": "a", "answer": "b"}', "no response, found answer, prompt"),
        ("{}", "no prompt and no response, found nothing"),
        ('{"prompt": "a", "response": ""}', "the response is empty"),
        ('{"prompt": "a", "response": ["b"]}', 'response is ["b"], expected text'),
        ('{"prompt": "", "response": "b"}', "not empty"),
        ('{"prompt": [], "response": "b"}', "not empty"),
        ('{"prompt": null, "response": "b"}', "prompt is null"),
        ('{"prompt": ["hi"], "response": "b"}', 'prompt[0] is "hi"'),
        ('{"prompt": [{"content": "hi"}], "response": "b"}', "prompt[0]"),
        ('{"prompt": "\\ud800", "response": "b"}', "not UTF-8"),
        (b'{"prompt": "\xff", "response": "b"}\n', "not UTF-8"),
    ],
)
def test_what_is_no_example_is_told_by_file_and_line(tmp_path, line, told):
    path = written(tmp_path, '{"prompt": "a", "response": "b"}', line)
    with pytest.raises(SourceError) as error:
        list(read_examples(path))
    assert str(error.value).startswith(f"{path}:2: ")
    assert told in str(error.value)


def test_a_file_that_is_not_there_or_a_folder_is_told(tmp_path):
    with pytest.raises(SourceNotFoundError, match="no such data file"):
        list(read_examples(tmp_path / "none.jsonl"))
    with pytest.raises(SourceError, match="can't be read"):
        list(read_examples(tmp_path))
    with pytest.raises(MergeError):
        sha256_of(tmp_path / "none.jsonl")


def test_prompt_and_response_are_tokenised_apart(tmp_path):
    one = encode_one(Example("ask", "ab", 7), Letters(bos=1), "here", 100, chat=False)
    assert (one.prompt, one.response, one.line, one.cut) == ((1, *tokens("ask")), tokens("ab"), 7, False)


def test_messages_and_prompts_with_chat_go_through_the_template():
    messages = ({"role": "system", "content": "S"}, {"role": "user", "content": "U"})
    one = encode_one(Example(messages, "R", 1), Letters(bos=1), "here", 100, chat=False)
    assert one.prompt == tokens("<system>S<user>U<assistant>")  # the template says whether there is a first token
    plain = encode_one(Example("U", "R", 1), Letters(), "here", 100, chat=True)
    assert plain.prompt == tokens("<user>U<assistant>")


def test_a_long_prompt_loses_its_left_but_not_its_first_token():
    one = encode_one(Example("abcdef", "xy", 1), Letters(), "here", 5, chat=False)
    assert (one.prompt, one.response, one.cut) == (tokens("def"), tokens("xy"), True)
    one = encode_one(Example("abcdef", "xy", 1), Letters(bos=1), "here", 5, chat=False)
    assert (one.prompt, one.cut) == ((1, *tokens("ef")), True)
    one = encode_one(Example("abcdef", "wxyz", 1), Letters(bos=1), "here", 5, chat=False)
    assert one.prompt == (1,)


def test_a_response_without_room_for_a_prompt_is_skipped_and_the_next_one_taken(tmp_path):
    examples = [Example("a", "long response", 1), Example("a", "ok", 2), Example("b", "ok", 3), Example("c", "ok", 4)]
    corpus = encode(examples, Letters(), tmp_path, wanted=2, max_length=10, chat=False)
    assert [example.line for example in corpus.examples] == [2, 3]
    assert (corpus.skipped, corpus.tokens) == (1, 6)


def test_fewer_examples_than_wanted_are_all_used(tmp_path):
    assert len(encode(some(3), Letters(), tmp_path, wanted=5, max_length=10, chat=False).examples) == 3


@pytest.mark.parametrize(
    ("count", "told"), [(0, "the file has no example"), (2, "every response has 4 or more tokens")]
)
def test_nothing_to_use_is_told(tmp_path, count, told):
    with pytest.raises(SourceError, match=told):
        encode(some(count), Letters(), tmp_path, wanted=5, max_length=4, chat=False)


@pytest.mark.parametrize(("prompt", "response"), [("~", "b"), ("a", "~")])
def test_a_text_without_a_token_is_told(prompt, response):
    with pytest.raises(SourceError, match=r"here: the (prompt|response) has no token"):
        encode_one(Example(prompt, response, 1), Letters(), "here", 9, chat=False)


def test_a_missing_or_failing_chat_template_is_told():
    tokenizer = Letters()
    with pytest.raises(SourceError, match="chat template refuses the prompt: 'content'"):
        encode_one(Example(({"role": "user"},), "b", 1), tokenizer, "here", 9, chat=False)
    tokenizer.chat_template = None
    with pytest.raises(RecipeError, match="no chat template"):
        encode_one(Example("a", "b", 1), tokenizer, "here", 9, chat=True)


def test_the_hash_tells_another_cut(tmp_path):
    hashes = {
        encode(some(3), Letters(), tmp_path, wanted=3, max_length=length, chat=False).sha256 for length in (7, 8, 9, 10)
    }
    assert len(hashes) == 3  # 9 and 10 cut nothing


def test_skills_are_taken_in_turn_and_what_names_none_is_read_no_further_than_asked():
    one = [Example("p", "", line, skill) for line, skill in enumerate("aabba", 1)]
    assert [example.line for example in in_turn(one)] == [1, 3, 2, 4, 5]
    assert [example.line for example in in_turn([])] == []
    named = iter([Example("p", "r", 1), Example("p", "r", 2, "b"), Example("p", "r", 3)])
    taken = in_turn(named)
    assert (next(taken).line, next(named).line, next(taken).line) == (1, 2, 3)


def test_a_prompt_without_an_answer_is_the_whole_sequence():
    found = encode([Example("abc", "", 1)], Letters(bos=1), Path("d"), wanted=1, max_length=3, chat=False).examples[0]
    assert (found.prompt, found.response, found.cut) == ((1, ord("b"), ord("c")), (), True)
