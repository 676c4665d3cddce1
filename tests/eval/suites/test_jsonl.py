"""The user's own prompts, and every way to score them."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import pytest

from agentmerge.errors import EvalError
from agentmerge.eval.generators.replay import Scripted
from agentmerge.eval.request import Request
from agentmerge.eval.run import scored
from agentmerge.eval.suites.jsonl import JsonLines

if TYPE_CHECKING:
    from pathlib import Path

ROWS = [
    {"prompt": "2+2?", "answer": "4", "id": "four", "group": "a"},
    {"prompt": "3+3?", "answer": ["6", "six"]},
    {"messages": [{"role": "system", "content": "s"}, {"role": "user", "content": "1+1?"}], "answer": "2"},
]
SAID = {"2+2?": " 4\n", "3+3?": "It is Six.", "s\n1+1?": "22"}


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "prompts.jsonl"
    path.write_text("".join(json.dumps(row) + "\n\n" for row in ROWS))
    return path


def worth(file: Path, **settings) -> list[float]:
    suite = JsonLines.make(file=file, **settings)
    return [cells["score"].value for _, cells in scored(suite, Scripted(lambda request: SAID[request.text]))]


@pytest.mark.parametrize(
    ("scoring", "settings", "expected"),
    [
        ("exact", {}, [1, 0, 0]),
        ("substring", {}, [1, 0, 1]),
        ("substring", {"ignore_case": True}, [1, 1, 1]),
        ("regex", {}, [1, 0, 1]),
        ("regex", {"ignore_case": True}, [1, 1, 1]),
    ],
)
def test_an_answer_is_scored_as_the_settings_say(file, scoring, settings, expected):
    assert worth(file, scoring=scoring, **settings) == expected


def test_a_function_of_the_users_own_scores(file, tmp_path: Path):
    (tmp_path / "own.py").write_text("def half(text, row):\n    return 0.5 if row['answer'] in text else False\n")
    file.write_text(json.dumps(ROWS[0]) + "\n" + json.dumps(ROWS[2]) + "\n")
    assert worth(file, scoring=f"{tmp_path}/own.py:half") == [0.5, 0.5]
    (tmp_path / "two.py").write_text("def two(text, row):\n    return 2\n")
    with pytest.raises(EvalError, match="expected a number between 0 and 1"):
        worth(file, scoring=f"{tmp_path}/two.py:two")


def test_samples_count_by_their_mean(file):
    file.write_text(json.dumps(ROWS[0]))
    suite = JsonLines.make(file=file, samples=4, temperature=1.0)
    ((_, cells),) = scored(suite, Scripted(lambda request: "4" if request.sample else "5"))
    assert cells["score"].value == 0.75


def test_a_prompt_is_a_chat_or_text_that_is_gone_on_with(file):
    item = JsonLines.make(file=file).items()[0]
    chat = next(JsonLines.make(file=file, system="be brief", stop=("x",)).converse(item))[0]
    assert [(message.role, message.content) for message in chat.messages] == [("system", "be brief"), ("user", "2+2?")]
    assert chat.sampling.stop == ("x",)
    text = next(JsonLines.make(file=file, chat=False).converse(item))[0]
    assert text == Request.raw("2+2?", text.sampling)


@pytest.mark.parametrize(
    ("content", "said"),
    [
        ("", "is empty"),
        ("[1]\n", "line 1 is b'[1]', expected a JSON object"),
        ('{"prompt": "a"}', "object 1 has no answer"),
        ('{"prompt": 1, "answer": "a"}', "prompt is 1, expected a text"),
        ('{"prompt": "a", "answer": "("}', "is no pattern"),
        ('{"prompt": "a", "answer": "a", "id": 1}\n{"prompt": "b", "answer": "a", "id": "1"}', "an id stands twice"),
    ],
)
def test_what_is_wrong_with_a_file_is_told_with_its_place(file, content, said):
    file.write_text(content)
    with pytest.raises(EvalError, match=r"prompts\.jsonl") as caught:
        JsonLines.make(file=file, scoring="regex").items()
    assert said in str(caught.value)


@pytest.mark.parametrize("scoring", ["exact", "substring", "regex"])
@pytest.mark.parametrize("answer", ['""', '[""]', '["4", " "]', "[]", "null", '["4", null]'])
def test_an_answer_that_cannot_be_right_or_cannot_be_wrong_is_refused(file, scoring, answer):
    file.write_text(f'{{"prompt": "2+2?", "answer": "4"}}\n{{"prompt": "2+2?", "answer": {answer}}}')
    if scoring == "exact" and answer in ('""', '[""]', '["4", " "]'):  # to say nothing may be right
        assert len(JsonLines.make(file=file, scoring=scoring).items()) == 2
        return
    with pytest.raises(EvalError, match=r"prompts\.jsonl: object 2: answer is .*expected a text, or a list of texts"):
        JsonLines.make(file=file, scoring=scoring).items()


def test_to_say_nothing_can_be_right(file):
    file.write_text('{"prompt": "2+2?", "answer": ""}\n{"prompt": "3+3?", "answer": ["", "x"]}')
    suite = JsonLines.make(file=file)
    said = {"2+2?": " ", "3+3?": "y"}
    assert [c["score"].value for _, c in scored(suite, Scripted(lambda request: said[request.text]))] == [1, 0]


def test_a_function_of_the_users_own_needs_no_answer(file, tmp_path: Path):
    (tmp_path / "own.py").write_text("def any(text, row):\n    return 1\n")
    file.write_text('{"prompt": "a", "answer": ""}\n{"prompt": "b", "answer": []}\n{"prompt": "c"}')
    assert len(JsonLines.make(file=file, scoring=f"{tmp_path}/own.py:any").items()) == 3


def test_what_is_missing_is_told_beforehand(tmp_path: Path, file):
    assert "--set jsonl.file=" in str(JsonLines.make().requires()[0])
    assert "no such file" in str(JsonLines.make(file=tmp_path / "none.jsonl").requires()[0])
    assert "Did you mean 'substring'?" in str(JsonLines.make(file=file, scoring="substrin").requires()[0])
    assert "can't be imported" in str(JsonLines.make(file=file, scoring="no_such_module:f").requires()[0])


def test_an_unknown_setting_or_preset_is_told():
    with pytest.raises(EvalError, match=r"jsonl.sampels: unknown field. Did you mean 'samples'\?"):
        JsonLines.make(sampels=2)
    with pytest.raises(EvalError, match=r"jsonl: no preset 'papre'\. Did you mean 'paper'"):
        JsonLines.make("papre")


def test_what_the_users_function_raises_is_told_with_what_it_was_given(file, tmp_path: Path):
    (tmp_path / "own.py").write_text("def half(text, row):\n    return float(len(text) < 5 or text)\n")
    with pytest.raises(EvalError, match=r"own\.py:half: fails with ValueError.* where text is 'It is Six.'") as told:
        worth(file, scoring=f"{tmp_path / 'own.py'}:half")
    assert "--score-only" in str(told.value)


def test_several_groups_have_a_column_each(file: Path) -> None:
    columns = JsonLines.make(file=file, name="mine").columns
    assert [(column.label, column.groups) for column in columns] == [("mine", ()), ("others", ("",)), ("a", ("a",))]
    file.write_text(json.dumps({"prompt": "2+2?", "answer": "4", "group": "a"}))
    assert [column.label for column in JsonLines.make(file=file, name="mine").columns] == ["mine"]
