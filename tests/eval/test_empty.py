"""Answers without text: when they are told of, and what is said."""

from __future__ import annotations

import pytest

from agentmerge.eval.empty import Empty, empty_of, said_of
from agentmerge.eval.request import Response


def test_what_did_not_fit_and_calls_of_tools_are_no_empty_answers():
    asked = [Response.unasked(9), Response("", True, aside="tool_calls"), Response("a", False), Response(" \n", True)]
    assert empty_of(asked) == Empty(answers=1, cut_off=0, tokens=None)


@pytest.mark.parametrize(
    ("empty", "requests", "told"),
    [
        (Empty(), 0, False),
        (Empty(), 100, False),
        (Empty(answers=4), 100, False),
        (Empty(answers=5), 100, True),
        (Empty(answers=1), 1, True),
        (Empty(answers=1, aside={"reasoning": 1}), 1000, True),
    ],
)
def test_a_few_may_be_what_a_model_has_to_say(empty, requests, told):
    assert bool(said_of(empty, requests)) == told


def test_thinking_to_the_limit_asks_for_more_tokens_and_not_for_another_server():
    said = said_of(Empty(answers=3, cut_off=3, tokens=96, aside={"reasoning_content": 3}), 8)
    assert said.startswith("3 of 8 answers are empty although 96 tokens were generated for them")
    assert "3 of them ended at max_tokens: raise it" in said
    assert "reasoning_content (3)" in said
    assert "parser" not in said


def test_without_a_field_nothing_is_said_of_thinking():
    said = said_of(Empty(answers=8, tokens=None), 8)
    assert said.startswith("8 of 8 answers are empty, and count as no answer. Ask one of its prompts by hand")
    assert "reasoning" not in said
    assert "max_tokens" not in said
