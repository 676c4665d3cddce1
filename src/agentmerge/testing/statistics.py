"""The contract of every statistic: its answers add up exactly, travel as JSON, and are the same by a kernel."""

from __future__ import annotations

import json
from functools import reduce
from typing import TYPE_CHECKING, Any

import numpy as np

from agentmerge import kernels
from agentmerge.survey.statistic import AfterStatistic, Statistic
from agentmerge.tensors import LEAF, Array, Cast, as_float32
from agentmerge.testing.stacks import hostile_stacks

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from agentmerge.tensors import Stack

    Question = Statistic[Any] | AfterStatistic[Any]

CAST = Cast("BF16", "stochastic", seed=3)
"""What an AfterStatistic is asked about: the mean task vector added to the base, stored so."""


def assert_statistic_contract(
    question: Question, *, agents: Sequence[int] = (1, 3, 9, 64), stacks: Iterable[Stack] | None = None
) -> None:
    """Raise AssertionError unless a statistic keeps the contract of every statistic.

    - it is frozen, and its own key;
    - `observe` is pure: it changes no input and gives the same twice;
    - the answer is the same however a stack is cut at its leaves, and in whichever order the parts are combined:
      `combine` is exact, associative and commutative, and changes neither answer;
    - an answer survives its way through JSON;
    - a kernel, where there is one, equals the definition bit for bit.

    Answers are compared as what `encode` makes of them.

    Args:
        question: a Statistic or an AfterStatistic.
        agents: the numbers of agents that it can be asked about.
        stacks: what it is asked about; hostile ones when None.
    """
    _assert_is_its_own_key(question)
    for stack in hostile_stacks(agents) if stacks is None else stacks:
        whole = _asked_twice(question, stack)
        _assert_travels(question, whole)
        _assert_same_however_cut(question, stack, whole)
        _assert_kernel_equals_definition(question, stack, whole)


def _assert_is_its_own_key(question: Question) -> None:
    try:
        hash(question)
    except TypeError as error:
        raise AssertionError(f"{question!r} is no key: a statistic is a frozen dataclass of its settings") from error
    if type(question).__name__ not in question.key:
        raise AssertionError(f"the key is {question.key!r}, expected it to hold the name of the class")


def _asked_twice(question: Question, stack: Stack) -> Any:
    arrays = (stack.base, *stack.agents, *(array for kind in stack.extra.values() for array in kind))
    before = [array.tobytes() for array in arrays]
    answer, again = _observed(question, stack), _observed(question, stack)
    if before != [array.tobytes() for array in arrays]:
        raise AssertionError(f"{_place(question, stack)}: observe changed its inputs")
    _assert_same(question, again, answer, f"{_place(question, stack)}, asked twice")
    return answer


def _assert_travels(question: Question, answer: Any) -> None:
    text = json.dumps(question.answers.encode(answer))
    _assert_same(question, question.answers.decode(json.loads(text)), answer, f"{question!r}: read back from JSON")


def _assert_same_however_cut(question: Question, stack: Stack, whole: Any) -> None:
    """Parts of one and of two leaves, taken from left to right, from right to left, and every other one first."""
    combine = question.answers.combine
    for leaves in (1, 2):
        parts = [_observed(question, part) for part in stack.pieces(leaves * LEAF)] or [whole]
        before = [_text(question, part) for part in parts]
        for order in (parts, parts[::-1], [*parts[::2], *parts[1::2]]):
            for folded in (reduce(combine, order), _folded_from_right(question, order)):
                place = f"{_place(question, stack)}: parts of {leaves * LEAF} elements combined"
                _assert_same(question, folded, whole, place)
        if before != [_text(question, part) for part in parts]:
            raise AssertionError(f"{_place(question, stack)}: combine changed an answer that it was given")


def _folded_from_right(question: Question, parts: Sequence[Any]) -> Any:
    """From the right, a + (b + (c + d)): what is associative need not be commutative, and the reverse."""
    return reduce(lambda right, left: question.answers.combine(left, right), reversed(parts))


def _assert_kernel_equals_definition(question: Question, stack: Stack, whole: Any) -> None:
    found = _by_kernel(question, stack)
    if found is not None:
        _assert_same(question, found, whole, f"{_place(question, stack)}: by its kernel")


def _by_kernel(question: Question, stack: Stack) -> Any:
    with np.errstate(all="ignore"):
        if isinstance(question, Statistic):
            backend = kernels.choose(stack)
            return None if backend is None else question.kernel(stack, backend)
        backend = kernels.choose(stack, CAST.dtype)
        return None if backend is None else question.kernel(stack, _stored(stack)[1], backend)


def _observed(question: Question, stack: Stack) -> Any:
    with np.errstate(all="ignore"):
        if isinstance(question, Statistic):
            return question.observe(stack)
        return question.observe(stack, *_stored(stack), CAST)


def _stored(stack: Stack) -> tuple[Array, Array]:
    """A merge of the stack, float32 [n], and what is stored of it [n]; element by element: parts give parts."""
    with np.errstate(all="ignore"):
        merged = as_float32(stack.base) + stack.task_vectors().mean(axis=0, dtype=np.float32)
        stored = CAST.apply(merged, stack.block.tensor.name, stack.block.start)
        return merged, stored


def _assert_same(question: Question, found: Any, expected: Any, place: str) -> None:
    left, right = _text(question, found), _text(question, expected)
    if left != right:
        raise AssertionError(f"{place}: found {left:.200}, expected {right:.200}")


def _text(question: Question, answer: Any) -> str:
    return json.dumps(question.answers.encode(answer), sort_keys=True)


def _place(question: Question, stack: Stack) -> str:
    dtypes = ", ".join(array.dtype.name for array in (stack.base, *stack.agents[:3]))
    return f"{question!r} over {stack.base.size} elements of {len(stack.agents)} agents ({dtypes})"
