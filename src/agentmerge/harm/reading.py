"""What a model makes of given answers, and what lies between the base and an agent; knows no torch."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Sequence

    from agentmerge.importance.tokens import TokenSequence
    from agentmerge.tensors import Array

LONG = 16
"""Tokens of which an answer counts whole; a longer one counts as so many of its mean tokens."""

Weights = dict[str, Any]
"""Parameters by the model's own names, tensors of torch as stored."""


@dataclass(frozen=True)
class Between:
    """base + weight * (agent - base), and the base alone in what is skipped."""

    agent: Weights | None = None
    """None is the base itself."""
    weight: float = 1.0
    skipped: frozenset[str] = frozenset()
    """Parameters."""


class Reading(NamedTuple):
    """What a model makes of answers, prompt by prompt."""

    likelihood: Array
    """float64 [n], summed over the answer's tokens: log p(token | prefix)."""
    hits: Array
    """int64 [n], tokens that the model would give itself: the likeliest of all."""


class Drop(NamedTuple):
    """What is lost from one reading to another."""

    mean: float
    """Nats an answer, mean over the prompts."""
    error: float
    """Standard error of the mean; inf of a single prompt."""


def counted(examples: Sequence[TokenSequence]) -> Array:
    """min(1, LONG / tokens), float64 [n]: by what the log-likelihood of an answer is multiplied.

    A short answer is right or wrong as a whole. Of a long one every token drifts a little without harm, in any agent.
    """
    return np.array([min(1.0, LONG / len(one.response)) for one in examples])


def drop_of(before: Reading, after: Reading, examples: Sequence[TokenSequence]) -> Drop:
    """The mean of (log p_before - log p_after) * min(1, LONG / tokens), prompts paired.

    Args:
        before: of the base.
        after: of the other model, on the same examples.
        examples: at least one.
    """
    each = (before.likelihood - after.likelihood) * counted(examples)
    error = float(each.std(ddof=1) / np.sqrt(len(each))) if len(each) > 1 else float("inf")
    return Drop(float(each.mean()), error)


def per_token(reading: Reading, examples: Sequence[TokenSequence]) -> float:
    """The log-likelihood of a token, mean over all answers."""
    return float(reading.likelihood.sum() / sum(len(one.response) for one in examples))
