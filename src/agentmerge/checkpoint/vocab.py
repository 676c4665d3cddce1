"""Vocabularies of different size: compare the tokens, then see every agent with the same rows. Knows no methods.

strict      every embedding and head has the base's number of rows
base-rows   the base's rows; a row that an agent lacks counts as unchanged by it, a row that only it has is left out
union       the base's rows, and those of the tokens that one agent added: they are that agent's to the bit
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Literal

from agentmerge.checkpoint.tokens import compare, few, token_ids
from agentmerge.checkpoint.views import Composed, Piece, widest
from agentmerge.errors import AlignmentError, MergeError, shortened
from agentmerge.tensors import TensorSpec

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from agentmerge.checkpoint.reader import Opened

ROWED = re.compile(
    r"(?:^|\.)(?:embed_tokens|wte|word_embeddings|tok_embeddings|embed_in|lm_head|embed_out|shared_head\.head)\.weight$"
    r"|^(?:model\.)?output\.weight$|(?:^|\.)lm_head\.bias$"
)
"""Tensors with a row per token."""

Mode = Literal["strict", "base-rows", "union"]
Tell = Callable[[str, MergeError], None]
"""Is given an agent's name and what is wrong with it; may raise it."""
Range = tuple[int, int]


@dataclass(frozen=True)
class Vocabulary:
    """The sources with the same rows everywhere."""

    base: Opened
    agents: dict[str, Opened]
    rows: int | None = None
    """For the output's config where it differs from the base's."""
    grown_by: str | None = None
    """The agent that brings the added tokens, under union."""
    warnings: tuple[str, ...] = ()


def is_rowed(name: str) -> bool:
    """Whether a tensor has a row per token."""
    return ROWED.search(name) is not None


def rows_of(source: Opened) -> dict[str, int]:
    """The number of rows of every tensor that has one per token."""
    return {name: spec.shape[0] for name, spec in source.specs.items() if spec.shape and is_rowed(name)}


def aligned_vocabulary(
    base: Opened,
    agents: Mapping[str, Opened],
    mode: Mode,
    tell: Tell,
    *,
    reads: Callable[[str, str], bool] = lambda tensor, agent: True,
) -> Vocabulary:
    """Check tokens and rows, and make the rows alike where the mode allows it.

    Args:
        base: under the names of the output.
        agents: by name, under the base's names.
        mode: see the file's head.
        tell: what to do with an error.
        reads: whether a tensor of an agent is read at all.
    """
    ours = token_ids(base.folder)
    maps: dict[str, dict[str, int]] = {}
    warnings: list[str] = []
    good = dict(agents)
    for name, agent in good.copy().items():
        try:
            theirs = token_ids(agent.folder)
            used = any(reads(tensor, name) for tensor in rows_of(base).keys() & agent.specs.keys())
            if ours is not None and theirs is not None and used:
                warnings += _compared(name, ours, theirs, mode)
            if theirs is not None:
                maps[name] = theirs
            different = _differing(base, agent, name, reads)
            if different and mode == "strict":
                added = [t for t, i in (theirs or {}).items() if ours is not None and i not in set(ours.values())]
                raise AlignmentError(_strict(name, base, agent, different, sorted(added)))
            if different and mode == "base-rows":
                warnings += _cut(name, base, agent, different)
        except MergeError as error:
            tell(name, error)
            good.pop(name)
    if mode == "union":
        try:
            return _union(base, good, ours, maps, tuple(warnings))
        except MergeError as error:
            tell("", error)
    return Vocabulary(base, {n: laid_like(a, base) for n, a in good.items()}, warnings=tuple(warnings))


def laid_like(agent: Opened, base: Opened, added: Sequence[Range] = (), *, zero: bool = False) -> Opened:
    """The agent with the base's rows: its own as far as they go, the base's elsewhere.

    Args:
        agent: under the base's names.
        base: decides the rows.
        added: rows that are the base's although the agent has them.
        zero: 0 in place of the base's numbers, for importance.
    """
    specs, pieces = dict(agent.specs), {}
    for name, rows in rows_of(agent).items():
        wanted = base.specs.get(name)
        if wanted is None or wanted.shape[1:] != agent.specs[name].shape[1:] or not wanted.shape[0]:
            continue
        inside = [(low, min(high, wanted.shape[0])) for low, high in added if low < wanted.shape[0]]
        if rows == wanted.shape[0] and not inside:
            continue
        width = wanted.elements // wanted.shape[0]
        source = None if zero else base
        pieces[name] = tuple(
            Piece(agent if own else source, name, low * width, (high - low) * width)
            for low, high, own in _split(wanted.shape[0], [*inside, (min(rows, wanted.shape[0]), wanted.shape[0])])
        )
        dtypes = [agent.specs[name].dtype, *([] if zero else [wanted.dtype])]
        specs[name] = TensorSpec(name, widest(dtypes), wanted.shape)
    return Composed(agent, specs, pieces) if pieces else agent


def _compared(name: str, ours: Mapping[str, int], theirs: Mapping[str, int], mode: Mode) -> list[str]:
    """Refuse another order of tokens; tell new ones."""
    found = compare(ours, theirs)
    if found.moved:
        raise AlignmentError(
            f"agent '{name}' has {len(found.moved)} tokens under other ids than the base, for example {found.example}; "
            "expected the same ids, since a row of one token can't be merged with that of another. Use an agent with "
            "the base's tokenizer, or take the embedding and head from the base with rules (take: base)."
        )
    warnings = []
    if found.added and mode != "union":
        warnings.append(
            f"agent '{name}' has {len(found.added)} tokens that the base's tokenizer lacks: {few(found.added)}; the "
            "output does not know them unless inputs.vocab is union (--vocab union)"
        )
    if found.renamed:
        warnings.append(
            f"agent '{name}' gives {len(found.renamed)} spare tokens of the base a name of their own: "
            f"{few(found.renamed)}; inputs.tokenizer_from: {name} keeps these names"
        )
    return warnings


def _differing(base: Opened, agent: Opened, name: str, reads: Callable[[str, str], bool]) -> dict[str, tuple[int, int]]:
    """Tensor to the rows of the agent and of the base, where they differ; rows of another width are told later."""
    ours = rows_of(base)
    return {
        tensor: (rows, ours[tensor])
        for tensor, rows in rows_of(agent).items()
        if tensor in ours
        and rows != ours[tensor]
        and reads(tensor, name)
        and agent.specs[tensor].shape[1:] == base.specs[tensor].shape[1:]
    }


def _strict(
    name: str, base: Opened, agent: Opened, different: Mapping[str, tuple[int, int]], added: Sequence[str]
) -> str:
    lines = [
        f"{tensor}: agent '{name}' has shape {list(agent.specs[tensor].shape)}, base has "
        f"{list(base.specs[tensor].shape)}."
        for tensor in different
    ]
    grows = any(theirs > ours for theirs, ours in different.values())
    tokens = f" It has {len(added)} tokens that the base lacks: {few(added)}." if added else ""
    union = " Pass --vocab union to keep the rows that it added, with its tokenizer, or" if grows else " Pass"
    return (
        "Vocabularies differ in their number of rows:\n" + "\n".join(lines) + f"\nExpected the same number.{tokens}"
        f"{union} --vocab base-rows (inputs.vocab) to keep the base's rows: "
        + ("rows beyond them are left out." if grows else "rows that it lacks count as unchanged by it.")
    )


def _cut(name: str, base: Opened, agent: Opened, different: Mapping[str, tuple[int, int]]) -> list[str]:
    warnings = []
    for tensor, (theirs, ours) in different.items():
        what = f"rows {ours} to {theirs - 1} are left out" if theirs > ours else "the rest count as unchanged by it"
        warnings.append(f"{tensor}: agent '{name}' has {theirs} rows, the base {ours}: {what}")
    return warnings


def _union(
    base: Opened,
    agents: Mapping[str, Opened],
    ours: Mapping[str, int] | None,
    maps: Mapping[str, Mapping[str, int]],
    warnings: tuple[str, ...],
) -> Vocabulary:
    now = max(rows_of(base).values(), default=0)
    taken = set((ours or {}).values())
    new = {n: sorted({i for i in maps.get(n, {}).values() if i not in taken}) if ours else [] for n in agents}
    growing = {n: max((r for t, r in rows_of(a).items() if t in base.specs), default=0) for n, a in agents.items()}
    donors = [name for name in agents if growing[name] > now or new[name]]
    if len(donors) > 1:
        raise AlignmentError(
            f"--vocab union: agents {shortened(donors)} all added tokens or rows to the base's {now}, expected one "
            "that did: rows that several agents added have no common ancestor. If they added the same tokens, use the "
            "checkpoint in which these were first added as the base; else pass --vocab base-rows."
        )
    if not donors:
        return Vocabulary(base, {n: laid_like(a, base) for n, a in agents.items()}, warnings=warnings)
    donor, rows = agents[donors[0]], growing[donors[0]]
    added = _ranges([*(i for i in new[donors[0]] if i < now), *range(now, rows)])
    grown = _grown(base, donor, donors[0], added)
    views = {n: laid_like(a, grown, added) for n, a in agents.items()}
    return Vocabulary(grown, views, rows if rows > now else None, donors[0], warnings)


def _grown(base: Opened, donor: Opened, name: str, added: Sequence[Range]) -> Opened:
    """The base with the donor's rows where tokens were added."""
    specs, pieces = dict(base.specs), {}
    for tensor, rows in rows_of(donor).items():
        mine = base.specs.get(tensor)
        if mine is None or not mine.shape[0]:
            continue
        if mine.shape[1:] != donor.specs[tensor].shape[1:]:
            raise AlignmentError(
                f"{tensor}: agent '{name}' has shape {list(donor.specs[tensor].shape)}, the base {list(mine.shape)}; "
                "expected rows of the same width. Is it an agent of this base?"
            )
        total, width = max(rows, mine.shape[0]), mine.elements // mine.shape[0]
        inside = [(low, min(high, rows)) for low, high in added if low < rows]
        specs[tensor] = replace(mine, shape=(total, *mine.shape[1:]))
        pieces[tensor] = tuple(
            Piece(base if own else donor, tensor, low * width, (high - low) * width)
            for low, high, own in _split(total, inside)
        )
    count = sum(high - low for low, high in added)
    return Composed(base, specs, pieces, (f"{count} rows of {shortened(pieces)} are taken from agent '{name}'",))


def _ranges(rows: Iterable[int]) -> list[Range]:
    """Sorted rows as ranges [low, high)."""
    found: list[Range] = []
    for row in rows:
        if found and found[-1][1] == row:
            found[-1] = (found[-1][0], row + 1)
        else:
            found.append((row, row + 1))
    return found


def _split(total: int, others: Sequence[Range]) -> list[tuple[int, int, bool]]:
    """[0, total) in consecutive pieces, each the source's own or, inside one of the ranges, another's."""
    pieces, at = [], 0
    for low, high in sorted(others):
        if at < low:
            pieces.append((at, low, True))
        if max(at, low) < high:
            pieces.append((max(at, low), high, False))
            at = high
    if at < total:
        pieces.append((at, total, True))
    return pieces
