"""Embeddings and heads laid together row by row from two checkpoints."""

from __future__ import annotations

import re
from dataclasses import replace
from typing import TYPE_CHECKING

from agentmerge.alike.view import FlatRange, RangeView, widest
from agentmerge.errors import AlignmentError, Where, shortened
from agentmerge.tensors import TensorSpec

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from agentmerge.sources.source import Source

ROWED = re.compile(
    r"(?:^|\.)(?:embed_tokens|wte|word_embeddings|tok_embeddings|embed_in|lm_head|embed_out|shared_head\.head)\.weight$"
    r"|^(?:(?:model|language_model|llm|thinker)\.)*output\.weight$|(?:^|\.)lm_head\.bias$"
    r"|^(?!.*\.\d+\.)(?:[\w.]+\.)?(?:output_layer|ff_out)\.weight$"
)
"""Tensors with a row per token."""

Range = tuple[int, int]
"""Rows [low, high)."""


def is_rowed(name: str) -> bool:
    """Whether a tensor has a row per token."""
    return ROWED.search(name) is not None


def rows_of(source: Source) -> dict[str, int]:
    """The number of rows of every tensor that has one per token."""
    return {name: spec.shape[0] for name, spec in source.specs.items() if spec.shape and is_rowed(name)}


def laid_like(agent: Source, base: Source, added: Sequence[Range] = (), *, zero: bool = False) -> Source:
    """The agent with the base's rows: its own as far as they go, the base's elsewhere.

    Args:
        agent: under the base's names.
        base: decides the rows.
        added: rows that are the base's although the agent has them.
        zero: 0 in place of the base's numbers, for importance.
    """
    specs, ranges = dict(agent.specs), {}
    for name, rows in rows_of(agent).items():
        wanted = base.specs.get(name)
        if wanted is None or wanted.shape[1:] != agent.specs[name].shape[1:] or not wanted.shape[0]:
            continue
        inside = [(low, min(high, wanted.shape[0])) for low, high in added if low < wanted.shape[0]]
        if rows == wanted.shape[0] and not inside:
            continue
        width = wanted.elements // wanted.shape[0]
        other = None if zero else base.weights
        ranges[name] = tuple(
            FlatRange(agent.weights if own else other, name, low * width, (high - low) * width)
            for low, high, own in _split(wanted.shape[0], [*inside, (min(rows, wanted.shape[0]), wanted.shape[0])])
        )
        dtypes = [agent.specs[name].dtype, *([] if zero else [wanted.dtype])]
        specs[name] = TensorSpec(name, widest(dtypes), wanted.shape)
    return agent.seen_as(RangeView(agent.weights, specs, ranges)) if ranges else agent


def grown_by(base: Source, donor: Source, added: Sequence[Range]) -> Source:
    """The base with an agent's rows where tokens were added.

    Raises:
        AlignmentError: their rows have another width.
    """
    specs, ranges = dict(base.specs), {}
    for tensor, rows in rows_of(donor).items():
        mine = base.specs.get(tensor)
        if mine is None or not mine.shape[0]:
            continue
        if mine.shape[1:] != donor.specs[tensor].shape[1:]:
            shape = list(donor.specs[tensor].shape)
            raise AlignmentError(
                f"{tensor}: {donor.role} has shape {shape}, the base {list(mine.shape)};",
                expected="rows of the same width",
                todo="Is it an agent of this base?",
                where=Where(donor.role, donor.text, tensor),
            )
        total, width = max(rows, mine.shape[0]), mine.elements // mine.shape[0]
        inside = [(low, min(high, rows)) for low, high in added if low < rows]
        specs[tensor] = replace(mine, shape=(total, *mine.shape[1:]))
        ranges[tensor] = tuple(
            FlatRange(base.weights if own else donor.weights, tensor, low * width, (high - low) * width)
            for low, high, own in _split(total, inside)
        )
    count = sum(high - low for low, high in added)
    note = f"{count} rows of {shortened(ranges)} are taken from {donor.role}"
    return base.seen_as(RangeView(base.weights, specs, ranges), note)


def ranges_of(rows: Iterable[int]) -> list[Range]:
    """Sorted rows as ranges [low, high)."""
    found: list[Range] = []
    for row in rows:
        if found and found[-1][1] == row:
            found[-1] = (found[-1][0], row + 1)
        else:
            found.append((row, row + 1))
    return found


def _split(total: int, others: Sequence[Range]) -> list[tuple[int, int, bool]]:
    """[0, total) in consecutive parts, each the source's own or, inside one of the ranges, another's."""
    parts, at = [], 0
    for low, high in sorted(others):
        if at < low:
            parts.append((at, low, True))
        if max(at, low) < high:
            parts.append((max(at, low), high, False))
            at = high
    if at < total:
        parts.append((at, total, True))
    return parts
