"""A merge put onto another checkpoint: what it changed of the base is added to that instead. Knows no method.

    stored = cast(onto + (merged - base))          onto's own bits where the merge is the base

`merged` is what the method made of base and agents in float32, before any cast, so every method can be put onto
another checkpoint, and each operation is one of float32: only the last one rounds to the output's dtype. What is
counted of the result is counted as if the agents had changed the other checkpoint as they changed the base.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np

from agentmerge import kernels
from agentmerge.kernels import Kernel, formulas
from agentmerge.methods.base import added
from agentmerge.methods.kernel import run
from agentmerge.tensors import LEAF, as_float32

if TYPE_CHECKING:
    from collections.abc import Sequence

    from agentmerge.engine.ledger import Answers
    from agentmerge.survey.statistic import Foldable
    from agentmerge.tensors import Array, Cast, Stack

PIECE = 32 * LEAF
"""Elements of which all that is counted stays in a processor's cache."""


def put_onto(
    stack: Stack, merged: Array, onto: Array, cast: Cast, out: Array, after: Sequence[Foldable[Any]]
) -> Answers:
    """Add what a merge changed to another checkpoint, cast it into `out`, and count.

    Args:
        stack: the block of base and agents.
        merged: float32 [n], what a method made of them.
        onto: [n] in its stored dtype.
        cast: to the output dtype.
        out: [n] in the output dtype, written.
        after: what is answered of the result: Rounding first, then AfterStatistics.
    """
    answers: Answers = {}
    with np.errstate(all="ignore"):
        for piece in stack.pieces(PIECE):
            low = piece.block.start - stack.block.start
            part = slice(low, low + piece.base.size)
            found = _piece(piece, merged[part], onto[part], cast, out[part], after)
            answers = {q: q.answers.combine(answers[q], found[q]) if q in answers else found[q] for q in found}
    return answers


def moved(stack: Stack, onto: Array) -> Stack:
    """The stack as if the agents had changed another checkpoint as they changed the base: the same task vectors."""
    base, tau = as_float32(onto), stack.task_vectors()
    return replace(stack, base=onto, agents=tuple(base + change for change in tau), tau=tau, stored=())


def _piece(stack: Stack, merged: Array, onto: Array, cast: Cast, out: Array, after: Sequence[Any]) -> Answers:
    rounding, *asked = after
    given = replace(stack, extra={"merged": (merged,), "onto": (onto,)})
    backend = kernels.choose(given, cast.dtype)
    answers: Answers = {}
    if backend is not None:
        settings = formulas.Onto(rounding.threshold)
        answers[rounding] = run(backend, [Kernel("onto", settings, given, (merged, onto))], stack, cast, out)
    if backend is not None and not asked:
        return answers
    there = moved(stack, onto)
    result = added(onto, merged - as_float32(stack.base))
    if backend is None:
        _cast(there, result, cast, out)
        answers[rounding] = rounding.observe(there, result, out, cast)
    return answers | {question: question.observe(there, result, out, cast) for question in asked}


def _cast(stack: Stack, result: Array, cast: Cast, out: Array) -> None:
    """The definition; float32 can't hold the own bits of a float64 checkpoint, which are selected."""
    out[:] = cast.apply(result, stack.block.tensor.name, stack.block.start)
    if stack.base.dtype == out.dtype:
        same = result == as_float32(stack.base)
        out[same] = stack.base[same]
