"""Vocabularies of different size: compare the tokens, then see every agent with the same rows.

strict      every embedding and head has the base's number of rows
base-rows   the base's rows; a row that an agent lacks counts as unchanged by it, a row that only it has is left out
union       the base's rows, and those of the tokens that one agent added: they are that agent's to the bit
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from agentmerge.alike.rows import grown_by, laid_like, ranges_of, rows_of
from agentmerge.alike.tokens import compare, content_of, quoted, token_ids
from agentmerge.errors import AlignmentError, MergeError, Note, Where, about, role_of, shortened
from agentmerge.sources.language import SPELLINGS, language_model

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from agentmerge.alike.family import Family
    from agentmerge.sources.source import Source

Ids = dict[str, int]


@dataclass(frozen=True)
class Tokens:
    """The tokens that agents are compared with, and theirs."""

    ours: Ids | None
    """The base's or, where it has no tokenizer, those of the first agent that has one; None where all have the same."""
    whose: str
    """For messages: "the base", or the agent."""
    theirs: Mapping[str, Ids | None]
    """By agent; None where they are `ours`, or can't be read."""

    def pair(self, name: str) -> tuple[Ids, Ids] | None:
        """Those to compare an agent with, and its own; None where there is nothing to compare."""
        theirs = self.theirs[name]
        return None if self.ours is None or theirs is None else (self.ours, theirs)


def base_rows(family: Family) -> Family:
    """Check tokens and rows, and see every source with the same rows where the mode allows it."""
    stored = family.base
    family, tokens = _tokens(family)
    family, said = family.each(lambda name, agent: _compared_tokens(name, agent, family, tokens))
    family = _noted(family, said)
    family, said = family.each(lambda name, agent: _compared_rows(name, agent, family, tokens))
    family = _noted(family, said)
    try:
        family = _united(family, tokens) if family.inputs.vocab == "union" else _laid(family)
    except MergeError as error:
        family = _laid(family.failed(error))
    return family.noted(*_false_vocab_size(stored, family))


def _noted(family: Family, said: Mapping[str, Sequence[str]]) -> Family:
    """The family with what was said of each agent."""
    return family.noted(*(Note(n, where=family.agents[name].where) for name, notes in said.items() for n in notes))


def _tokens(family: Family) -> tuple[Family, Tokens]:
    """Every tokenizer that differs; an agent whose tokenizer can't be read is left out."""
    family, contents = family.each(lambda _, agent: content_of(agent.folder.path))
    base, agents = family.base.folder.path, family.agents
    with about(family.base.where):
        mine = content_of(base)
    whose = "base" if mine else next((name for name, content in contents.items() if content), "base")
    like = mine or contents.get(whose, b"")
    others = [name for name, content in contents.items() if content not in (b"", like)]
    first = family.base if whose == "base" else agents[whose]
    with about(first.where):
        ours = token_ids(first.folder.path) if others else None
    family, theirs = family.each(lambda name, agent: token_ids(agent.folder.path) if name in others else None)
    return family, Tokens(ours, "the base" if whose == "base" else f"agent '{whose}'", theirs)


def _compared_tokens(name: str, agent: Source, family: Family, tokens: Tokens) -> list[str]:
    """Refuse another order of tokens; tell new ones."""
    pair = tokens.pair(name)
    if pair is None or not any(family.reads(t, name) for t in rows_of(family.base).keys() & agent.specs.keys()):
        return []
    found = compare(*pair)
    if found.moved:
        raise AlignmentError(
            f"{role_of(name)} has {len(found.moved)} tokens under other ids than {tokens.whose}, for example "
            f"{found.example};",
            expected="the same ids, since a row of one token can't be merged with that of another",
            todo="Use an agent with the base's tokenizer, or take the embedding and head from the base with rules "
            "(take: base), which leaves out what agents learned there.",
        )
    notes = []
    given = tokens.theirs.get(family.tokenizer_from)  # what the output's tokenizer knows, where that is an agent's
    unknown = [token for token in found.added if token not in (given or {})]
    if unknown and family.inputs.vocab != "union":
        whose = tokens.whose if given is None else role_of(family.tokenizer_from)
        notes.append(
            f"{role_of(name)} has {len(unknown)} tokens that the tokenizer of {whose} lacks: "
            f"{quoted(unknown)}; the output does not know them unless inputs.vocab is union (--vocab union)"
        )
    if found.renamed:
        notes.append(
            f"{role_of(name)} gives {len(found.renamed)} spare tokens of the base a name of their own: "
            f"{quoted(found.renamed)}; inputs.tokenizer_from: {name} keeps these names"
        )
    return notes


def _compared_rows(name: str, agent: Source, family: Family, tokens: Tokens) -> list[str]:
    """Refuse another number of rows where the mode is strict; tell what is left out where it is base-rows."""
    different, pair = _differing(name, agent, family), tokens.pair(name)
    if different and family.inputs.vocab == "strict":
        raise _other_rows(family.base, agent, different, compare(*pair).added if pair is not None else ())
    if family.inputs.vocab == "union":
        return []
    return [_cut(agent, tensor, *rows) for tensor, rows in different.items()]


def _differing(name: str, agent: Source, family: Family) -> dict[str, tuple[int, int]]:
    """Tensor to the rows of the agent and of the base, where they differ; rows of another width are told later."""
    base, ours = family.base, rows_of(family.base)
    return {
        tensor: (rows, ours[tensor])
        for tensor, rows in rows_of(agent).items()
        if tensor in ours
        and rows != ours[tensor]
        and family.reads(tensor, name)
        and agent.specs[tensor].shape[1:] == base.specs[tensor].shape[1:]
    }


def _other_rows(
    base: Source, agent: Source, different: Mapping[str, tuple[int, int]], added: Sequence[str]
) -> AlignmentError:
    lines = [
        f"{tensor}: {agent.role} has shape {list(agent.specs[tensor].shape)}, base has "
        f"{list(base.specs[tensor].shape)}."
        for tensor in different
    ]
    grows = any(theirs > ours for theirs, ours in different.values())
    tokens = f"It has {len(added)} tokens that the base lacks: {quoted(added)}. " if added else ""
    union = "Pass --vocab union to keep the rows that it added, with its tokenizer, or" if grows else "Pass"
    cut = "rows beyond them are left out." if grows else "rows that it lacks count as unchanged by it."
    return AlignmentError(
        "Vocabularies differ in their number of rows:\n" + "\n".join(lines) + "\n",
        expected="the same number",
        todo=f"{tokens}{union} --vocab base-rows (inputs.vocab) to keep the base's rows: {cut}",
        where=Where(agent.role, agent.text, next(iter(different))),
    )


def _cut(agent: Source, tensor: str, theirs: int, ours: int) -> str:
    what = f"rows {ours} to {theirs - 1} are left out" if theirs > ours else "the rest count as unchanged by it"
    return f"{tensor}: {agent.role} has {theirs} rows, the base {ours}: {what}"


def _laid(family: Family) -> Family:
    """Every agent with the base's rows."""
    return replace(family, agents={n: laid_like(agent, family.base) for n, agent in family.agents.items()})


def _united(family: Family, tokens: Tokens) -> Family:
    """Every source with the rows that one agent added, and that agent's tokenizer.

    Raises:
        AlignmentError: several agents added rows.
    """
    base, agents = family.base, family.agents
    now = max(rows_of(base).values(), default=0)
    taken = set((tokens.ours or {}).values())
    new = {name: sorted({*(tokens.theirs[name] or {}).values()} - taken) if tokens.ours else [] for name in agents}
    rows = {n: max((r for t, r in rows_of(a).items() if t in base.specs), default=0) for n, a in agents.items()}
    donors = [name for name in agents if rows[name] > now or new[name]]
    if len(donors) > 1:
        raise AlignmentError(
            f"--vocab union: agents {shortened(donors)} all added tokens or rows to the base's {now}",
            expected="one that did: rows that several agents added have no common ancestor",
            todo="If they added the same tokens, use the checkpoint in which these were first added as the base; else "
            "pass --vocab base-rows.",
        )
    if not donors:
        return _laid(family)
    (donor,) = donors
    added = ranges_of([*(i for i in new[donor] if i < now), *range(now, rows[donor])])
    grown = grown_by(base, agents[donor], added)
    family = family.changed(vocab_size=rows[donor]) if rows[donor] > now else family
    return replace(
        family,
        base=grown,
        agents={name: laid_like(agent, grown, added) for name, agent in agents.items()},
        tokenizer_from=donor if family.tokenizer_from == "base" else family.tokenizer_from,
    )


def _false_vocab_size(stored: Source, family: Family) -> list[Note]:
    """A note where the base's vocab_size is not its number of rows."""
    config = language_model(family.configs["base"])
    said = {size for name in SPELLINGS["vocab_size"] if type(size := config.get(name)) is int}
    found = set(rows_of(stored).values())
    if not said or not found or said & found:
        return []
    note = f"config.json has vocab_size {config['vocab_size']}, its tensors have {max(found)} rows"
    return [Note(note, where=stored.where, named=True)]
