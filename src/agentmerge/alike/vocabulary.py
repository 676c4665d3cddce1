"""Vocabularies of different size: compare the tokens, then see every agent with the same rows. Knows no methods.

strict      every embedding and head has the base's number of rows
base-rows   the base's rows; a row that an agent lacks counts as unchanged by it, a row that only it has is left out
union       the base's rows, and those of the tokens that one agent added: they are that agent's to the bit
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from agentmerge.alike.rows import grown_by, laid_like, ranges_of, rows_of
from agentmerge.alike.tokens import compare, content_of, few, token_ids
from agentmerge.errors import AlignmentError, MergeError, shortened

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from agentmerge.sources.folder import Opened

Mode = Literal["strict", "base-rows", "union"]
Tell = Callable[[str, MergeError], None]
"""Is given an agent's name and what is wrong with it; may raise it."""


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
    ours, whose, maps = _maps(base, agents, tell)
    warnings: list[str] = []
    good = {name: agent for name, agent in agents.items() if name in maps}
    for name, agent in good.copy().items():
        try:
            theirs = maps[name]
            used = any(reads(tensor, name) for tensor in rows_of(base).keys() & agent.specs.keys())
            if ours is not None and theirs is not None and used:
                warnings += _compared(name, ours, theirs, mode, whose)
            different = _differing(base, agent, name, reads)
            if different and mode == "strict":
                added = compare(ours, theirs).added if ours is not None and theirs is not None else ()
                raise AlignmentError(_strict(name, base, agent, different, added))
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


def _maps(
    base: Opened, agents: Mapping[str, Opened], tell: Tell
) -> tuple[dict[str, int] | None, str, dict[str, dict[str, int] | None]]:
    """The tokens to compare with, whose they are, and those of every agent that can be read; None for the same files.

    They are the base's or, where it has no tokenizer, those of the first agent that has one.
    """
    contents = {name: content_of(agent.folder) for name, agent in agents.items()}
    mine = content_of(base.folder)
    whose = "base" if mine else next((name for name, content in contents.items() if content), "base")
    like = mine or contents.get(whose, b"")
    others = [name for name, content in contents.items() if content not in (b"", like)]
    ours = token_ids((base if whose == "base" else agents[whose]).folder) if others else None
    maps: dict[str, dict[str, int] | None] = {}
    for name, agent in list(agents.items()):
        try:
            maps[name] = token_ids(agent.folder) if name in others else None
        except MergeError as error:
            tell(name, error)
    return ours, "the base" if whose == "base" else f"agent '{whose}'", maps


def _compared(name: str, ours: Mapping[str, int], theirs: Mapping[str, int], mode: Mode, whose: str) -> list[str]:
    """Refuse another order of tokens; tell new ones."""
    found = compare(ours, theirs)
    if found.moved:
        raise AlignmentError(
            f"agent '{name}' has {len(found.moved)} tokens under other ids than {whose}, for example {found.example}; "
            "expected the same ids, since a row of one token can't be merged with that of another. Use an agent with "
            "the base's tokenizer, or take the embedding and head from the base with rules (take: base)."
        )
    warnings = []
    if found.added and mode != "union":
        warnings.append(
            f"agent '{name}' has {len(found.added)} tokens that the tokenizer of {whose} lacks: {few(found.added)}; "
            "the output does not know them unless inputs.vocab is union (--vocab union)"
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
    maps: Mapping[str, Mapping[str, int] | None],
    warnings: tuple[str, ...],
) -> Vocabulary:
    now = max(rows_of(base).values(), default=0)
    taken = set((ours or {}).values())
    new = {n: sorted({i for i in (maps[n] or {}).values() if i not in taken}) if ours else [] for n in agents}
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
    added = ranges_of([*(i for i in new[donors[0]] if i < now), *range(now, rows)])
    grown = grown_by(base, donor, donors[0], added)
    views = {n: laid_like(a, grown, added) for n, a in agents.items()}
    return Vocabulary(grown, views, rows if rows > now else None, donors[0], warnings)
