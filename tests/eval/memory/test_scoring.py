"""Sub-EM: MemAgent's, with every quirk that is told of it, and the one that does what its name says."""

from __future__ import annotations

import pytest

from agentmerge.eval.memory.scoring import answer_of, boxed, exact_match, sub_em_memagent, sub_em_strict

SAYS = "Therefore, the answer is "


@pytest.mark.parametrize(
    ("response", "answer"),
    [
        (f"{SAYS}Paris.", "Paris"),
        (f"{SAYS}**Paris**", "Paris"),
        (f"first the answer is Rome, no: {SAYS}Paris", "Paris"),
        (f"<think>{SAYS}Rome</think> {SAYS}Paris", "Paris"),
        (f"{SAYS}Rome</think>", "Rome</think>"),  # nothing follows it: all of it is read
        ("Paris", ""),
        ("", ""),
        (SAYS, ""),
        (f"{SAYS}...", ""),
        (f"{SAYS}Paris<\uff5cend\u2581of\u2581sentence\uff5c>", "Paris"),
    ],
)
def test_the_answer_is_what_follows_the_last_sentence(response: str, answer: str) -> None:
    assert answer_of(response, "sentence", any_case=False) == answer


def test_only_the_strict_way_reads_a_sentence_that_begins_in_capitals() -> None:
    assert answer_of("The answer is Paris.", "sentence", any_case=False) == ""
    assert answer_of("The answer is Paris.", "sentence", any_case=True) == "Paris"


@pytest.mark.parametrize(
    ("text", "answer"),
    [
        (r"so \boxed{Paris}", "Paris"),
        (r"\boxed{Rome} no \boxed{\text{New {York}}} yes", r"\text{New {York}}"),
        (r"$\boxed Paris$ is it", "Paris"),
        (r"\boxed{Paris", ""),
        (r"\boxed", ""),
        (r"\fbox{Paris}", ""),
        ("Paris", ""),
    ],
)
def test_a_box_is_read_to_the_brace_that_closes_it(text: str, answer: str) -> None:
    assert boxed(text) == answer
    assert answer_of(f"<think>\\boxed{{x}}</think>{text}", "boxed", any_case=False) == answer


@pytest.mark.parametrize(
    ("given", "right", "memagent", "strict"),
    [
        ("Paris, France", ["Paris"], 1, 1),
        ("Paris", ["Paris, France"], 1, 0),  # the given one in the right one
        ("the", ["Barack Obama"], 1, 0),  # normalises to nothing, which is in everything
        ("!", ["Barack Obama"], 1, 0),
        ("a", ["Barack Obama"], 1, 0),
        ("unknown", ["no"], 1, 0),  # characters, not words
        ("no, never", ["no"], 1, 1),
        ("Obama", ["Barack Obama", "Obama"], 1, 1),
        ("Mr Lincoln", ["Abraham L.", "Lincoln"], 0, 1),  # only the first right one is looked at
        ("the Eiffel-Tower", ["Eiffel Tower"], 0, 0),  # punctuation goes without a space
        ("Rome", ["Paris"], 0, 0),
        ("Rome", ["the"], 1, 0),  # a right answer that normalises to nothing
    ],
)
def test_sub_em_by_hand(given: str, right: list[str], memagent: int, strict: int) -> None:
    assert sub_em_memagent(SAYS + given, right, "sentence") == memagent
    assert sub_em_strict(SAYS + given, right, "sentence") == strict
    assert sub_em_memagent(f"\\boxed{{{given}}}", right, "boxed") == memagent


def test_an_empty_response_leaves_memagents_denominator_and_is_wrong_in_ours() -> None:
    assert sub_em_memagent("", ["Paris"], "sentence") is None
    assert sub_em_strict("", ["Paris"], "sentence") == 0
    assert sub_em_memagent(" ", ["Paris"], "sentence") == 0


def test_exact_match_wants_the_whole_answer_and_nothing_else() -> None:
    assert exact_match(f"{SAYS}the Beatles!", ["Stones", "Beatles"], "sentence") == 1
    assert exact_match(f"{SAYS}the Beatles of Liverpool", ["Beatles"], "sentence") == 0
    assert exact_match(f"{SAYS}the", ["the"], "sentence") == 0
