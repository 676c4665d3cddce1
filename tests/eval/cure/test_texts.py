"""What is read from answers."""

from __future__ import annotations

import pytest

from agentmerge.eval.cure.prompts import STOP, ask_case, ask_program
from agentmerge.eval.cure.texts import case_of, program_of
from agentmerge.eval.request import Sampling

SAMPLING = Sampling(max_tokens=10, stop=STOP)


@pytest.mark.parametrize(
    ("answer", "program"),
    [
        ("First\n```python\nprint(1)\n```\nor rather\n```python\nprint(2)\n```", "print(2)"),
        ("```python print(1)```", "print(1)"),
        ("```\nprint(1)\n```", None),
        ("```python\nprint(1)\n", None),
        ("", None),
    ],
    ids=["the last", "on a line", "not said to be Python", "cut off", "nothing"],
)
def test_the_last_finished_block_of_python_is_the_program(answer: str, program: str | None) -> None:
    assert program_of(answer) == program


@pytest.mark.parametrize(
    ("answer", "case"),
    [
        ("**Test Input:**\n```\n1 2\n```\n\n**Test Output:**\n```3```\n**Explanation:**\nsum", ("1 2\n", "3\n")),
        ("**Test Input:**\n```plaintext\n5\n```\n**Test Output:**\n```plaintext\n6\n```", ("5\n", "6\n")),
        ("**Test Input:** 5\\n1 2\n\n**Test Output:** 6\n\n**Explanation:** so", ("5\n1 2\n", "6\n")),
        ("**Test Input:**```1```**Test Output:**```2``` **Test Input:**```3```**Test Output:**```4```", ("3\n", "4\n")),
        ("**Test Input:**\n1\n**Test Output:**\n", ("1\n", "\n")),
        ("**Test Input:**\n```1```", None),
        ("**Test Output:**\n```1```", None),
        ("", None),
    ],
    ids=["fenced", "plaintext", "bare", "the last", "an empty output", "no output", "no input", "nothing"],
)
def test_a_unit_test_is_the_last_input_and_output(answer: str, case: tuple[str, str] | None) -> None:
    assert case_of(answer) == case


def test_the_example_in_the_prompt_is_read_back_so_an_echo_is_a_unit_test() -> None:
    asked = ask_case("Add.", (), SAMPLING, "cure", 0)
    assert case_of(asked.text) == ("input here\n", "output here\n")


def test_a_style_is_raw_text_with_cures_marks_or_messages() -> None:
    raw = ask_program("Add {two} numbers.", SAMPLING, "cure", 2)
    assert raw.prompt is not None
    assert raw.prompt.startswith("<|im_start|>You are a helpful assistant help user solve problems. <|im_end|>\n")
    assert raw.prompt.endswith("This is the problem:\nAdd {two} numbers. <|im_end|>\n<|im_start|>Assistant: ")
    assert raw.sample == 2
    chat = ask_program("Add {two} numbers.", SAMPLING, "chat", 0)
    assert chat.messages is not None
    assert [message.role for message in chat.messages] == ["system", "user"]
    assert "<|" not in chat.text
    assert "Add {two} numbers." in chat.text


def test_examples_are_shown_where_they_are_given() -> None:
    one = ask_case("Add.", [("1 2\n", "3")], SAMPLING, "cure", 0)
    assert "one test sample:\n Its input is '1 2\\n'. Its output is '3'.\nYou need" in one.text
    two = ask_case("Add.", [("1 2\n", "3"), ("0 0\n", "0")], SAMPLING, "cure", 0)
    assert "have 2 test samples:\n The inputs are, respectively, '1 2\\n', '0 0\\n'. The" in two.text
    assert "test sample" not in ask_case("Add.", (), SAMPLING, "cure", 0).text
