"""The ledger knows what is finished, and an interrupted pass adds up to the uninterrupted one."""

from __future__ import annotations

import itertools
import json
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from agentmerge.engine.ledger import Ledger, gaps, joined
from agentmerge.survey.overlap import Overlap
from agentmerge.tensors import Block, Stack
from agentmerge.testing import random_stack

QUESTION = Overlap()
STACK = random_stack(1, elements=1000)
NAME = STACK.block.tensor.name


def block(start: int, stop: int) -> Block:
    return Block(STACK.block.tensor, start, stop)


def answers(start: int, stop: int) -> Any:
    agents = tuple(agent[start:stop] for agent in STACK.agents)
    return {QUESTION: QUESTION.observe(Stack(block(start, stop), STACK.base[start:stop], agents, STACK.names))}


@given(
    edges=st.lists(st.integers(1, 999), max_size=8, unique=True),
    killed=st.integers(0, 9),
    flushes=st.sets(st.integers(0, 9)),
    order=st.randoms(),
)
@settings(max_examples=40, deadline=None)
def test_killed_and_gone_on_it_adds_up_to_the_same(
    edges: list[int], killed: int, flushes: set[int], order: Any
) -> None:
    ends = sorted({0, 1000, *edges})
    parts = list(itertools.pairwise(ends))
    order.shuffle(parts)
    journal: list[dict[str, Any]] = []
    first = Ledger("map", [QUESTION], (), journal.extend)
    for i, (start, stop) in enumerate(parts[:killed]):
        first.add(NAME, block(start, stop), answers(start, stop))
        if i in flushes:
            first.flush()
    entries = json.loads(json.dumps(journal))
    again = Ledger("map", [QUESTION], entries)

    for start, stop, _ in list(gaps([again.done(NAME)], 1000)):
        again.add(NAME, block(start, stop), answers(start, stop))
    again.flush()
    assert again.done(NAME) == [(0, 1000)]
    assert again.survey.total(QUESTION) == QUESTION.observe(STACK)
    assert again.survey.at(NAME, QUESTION) == QUESTION.observe(STACK)


def test_what_was_added_but_not_flushed_is_not_finished() -> None:
    ledger = Ledger("map", [QUESTION], (), lambda entries: None)
    ledger.add(NAME, block(0, 10), answers(0, 10))
    assert ledger.done(NAME) == []
    ledger.flush()
    assert ledger.done(NAME) == [(0, 10)]


def test_a_commit_that_fails_finishes_nothing() -> None:
    def full(entries: list[dict[str, Any]]) -> None:
        raise OSError("no space")

    ledger = Ledger("map", [QUESTION], (), full)
    ledger.add(NAME, block(0, 10), answers(0, 10))
    with pytest.raises(OSError, match="no space"):
        ledger.flush()
    assert ledger.done(NAME) == []
    assert not ledger.survey.knows(QUESTION)


def test_entries_of_other_passes_are_passed_over() -> None:
    entry = {"phase": "fold 0", "tensor": NAME, "ranges": [[0, 1000]], "answers": {"unknown": 1}}
    ledger = Ledger("map", [QUESTION], [entry])
    assert ledger.done(NAME) == []


def test_an_empty_flush_commits_nothing() -> None:
    journal: list[Any] = []
    Ledger("map", [QUESTION], (), journal.append).flush()
    assert journal == []


@pytest.mark.parametrize(
    ("done", "expected"),
    [
        ([[]], [(0, 20, (0,))]),
        ([[(0, 20)]], []),
        ([[(0, 4), (8, 20)]], [(4, 8, (0,))]),
        ([[(0, 4)], []], [(0, 4, (1,)), (4, 20, (0, 1))]),
        ([[(0, 8)], [(4, 20)]], [(0, 4, (1,)), (8, 20, (0,))]),
        ([[(0, 20)], [(0, 20)]], []),
    ],
)
def test_gaps_are_what_some_ledger_has_not_finished(done: Any, expected: Any) -> None:
    assert list(gaps(done, 20)) == expected


def test_a_tensor_without_elements_has_no_piece() -> None:
    assert list(gaps([[], []], 0)) == []


@pytest.mark.parametrize(
    ("ranges", "expected"),
    [
        ([], []),
        ([(4, 8), (0, 4)], [(0, 8)]),
        ([(8, 12), (0, 4)], [(0, 4), (8, 12)]),
        ([(2, 3), (1, 2), (0, 1), (5, 6)], [(0, 3), (5, 6)]),
    ],
)
def test_adjacent_ranges_become_one(ranges: list[tuple[int, int]], expected: list[tuple[int, int]]) -> None:
    assert joined(ranges) == expected
