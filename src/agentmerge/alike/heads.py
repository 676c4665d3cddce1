"""An output head that is, or may be, the embedding under a second name.

The base decides. Where its config ties the head, the output has one tensor for both, stored once or twice as the base
stores it: an agent's redundant head is left out, a missing one is read from its embedding. Where the base has a head of
its own, an agent that ties it is read from its embedding. `untie` gives every source, and the output, a head of its
own. Whether a redundant head is equal to the embedding is looked at in samples, and checked when the data is read (see
`Tie`).
"""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from itertools import takewhile
from typing import TYPE_CHECKING, Any

from agentmerge.alike.view import FlatRange, RangeView, renamed, without
from agentmerge.errors import AlignmentError, DataError, Note, Where
from agentmerge.sources.embeddings import NO_EMBEDDING, embedding_in, usual_head
from agentmerge.sources.language import language_sections, setting
from agentmerge.sources.prefixes import common_name
from agentmerge.sources.sampled import PIECE
from agentmerge.survey.ties import HeadDiffers
from agentmerge.tensors import Block, Stack, TensorSpec

if TYPE_CHECKING:
    from collections.abc import Mapping

    from agentmerge.alike.family import Family
    from agentmerge.sources.source import Source

HEAD = re.compile(
    r"(?:^|\.)(?:lm_head|embed_out|output_layer|output|ff_out|lm_out|head|proj_out|generator|decoder|logits|lm_proj"
    r"|unembed)\.weight$"
)
"""What heads are called, whatever stands before; one has a row per token, as wide as the embedding."""
NO_HEAD = re.compile(r"embed|wpe|wte|position|proj(?:ector)?\b")
"""In the names of tensors that are no head although they have its shape."""
SPOTS = 16
"""Places of a head and its embedding that are looked at before they are read, from the first row to the last."""


@dataclass(frozen=True)
class HeadPair:
    """The names of a source's embedding and head, stored or not."""

    embedding: str
    head: str


@dataclass(frozen=True)
class Tie:
    """Two tensors of one source that must be equal."""

    source: Source
    pair: HeadPair


@dataclass(frozen=True)
class Head:
    """A source with the head that it shall have, and what was found on the way."""

    source: Source
    ties: tuple[Tie, ...] = ()
    notes: tuple[Note, ...] = ()


def base_heads(family: Family) -> Family:
    """The base as the output will be, with a head of its own or tied, and every agent with the same form of head."""
    config, untie = family.configs["base"], family.inputs.untie
    pair = pair_of(family.base, untied=tie_flag(config) is False)
    if pair is None:
        return family
    tied = not untie and is_tied(family.base, config, pair)
    head = _head_of_base(family.base, pair, tied=tied, untie=untie)
    family, found = family.each(
        lambda name, agent: head_like_base(agent, family.configs[name], head.source, pair, tied=tied, untie=untie)
    )
    family = replace(
        family.changed(tie_word_embeddings=False) if untie else family,
        base=head.source,
        agents={name: each.source for name, each in found.items()},
        pair=pair,
        tied=pair if tied and pair.head in head.source.specs else None,
        ties=(*head.ties, *(tie for each in found.values() for tie in each.ties)),
    )
    return family.noted(*(note for each in found.values() for note in each.notes))


def pair_of(source: Source, *, untied: bool = False) -> HeadPair | None:
    """The one embedding of a language model and its head; None where there is none, or several.

    A head that is stored is found whatever stands before its name; where none is, it gets the usual one.

    Args:
        source: under any names.
        untied: its config says that it stores a head: one of an unusual name is then known by its shape.
    """
    embedding = embedding_in(source.specs)
    if embedding is None:
        return None
    usual = usual_head(embedding)
    return HeadPair(embedding, _stored_head(source, embedding, usual, untied) or usual)


def tie_flag(config: Mapping[str, Any]) -> bool | None:
    """Whether config.json ties the head to the embedding; None where it does not say.

    The outermost section on the way to the language model's that says anything is the one that counts.
    """
    sections = language_sections(config)
    values = (setting(section, "tie_word_embeddings") for section in sections)
    return next((value for value in values if isinstance(value, bool)), None)


def is_tied(base: Source, config: Mapping[str, Any], pair: HeadPair) -> bool:
    """Whether the output's head is its embedding.

    Raises:
        AlignmentError: the base's config says that it has a head of its own, and it has none.
    """
    stored, flag = pair.head in base.specs, tie_flag(config)
    if not stored and flag is False and makes_text(config):
        raise AlignmentError(
            f"{pair.head}: {base.role} ({base.text}) has none although tie_word_embeddings is false in its config.json",
            expected="a head",
            todo="Look that all of its shards are there. If its head is the embedding, set the flag to true, or pass "
            "--untie (inputs.untie) to give the output the embedding as a head of its own.",
            where=Where(base.role, base.text, pair.head),
        )
    return flag is True or not stored


def head_like_base(
    agent: Source, config: Mapping[str, Any], base: Source, pair: HeadPair, *, tied: bool, untie: bool
) -> Head:
    """Give an agent the base's form of head.

    Args:
        agent: under the base's names.
        config: its config.json.
        base: as the output will be.
        pair: of the base.
        tied: whether the base ties them.
        untie: whether every source has a head of its own.

    Raises:
        AlignmentError: it has neither head nor embedding.
    """
    flag = tie_flag(config)
    own = pair_of(agent, untied=flag is False) or pair
    own = replace(own, head=pair.head) if pair.head in agent.specs else own
    stored = own.head in agent.specs
    notes = _contradictions(agent, config, own)
    if stored and own.head != pair.head and not (tied and pair.head not in base.specs):
        agent = agent.seen_as(renamed(agent.weights, own.head, pair.head))
        own = HeadPair(own.embedding, pair.head)
    if untie:
        return Head(agent if stored else with_head(agent, own), (), notes)
    ties = (Tie(agent, own),) if stored and own.embedding in agent.specs else ()
    if tied or flag is True:
        _check(ties, here=not (agent.unseen or base.unseen))
    if tied and pair.head not in base.specs:
        return _without_head(agent, own, ties, notes)
    if tied:
        return Head(agent if stored else with_head(agent, own), ties, notes)
    if not stored and flag is True and own.embedding in agent.specs:
        text = f"{agent.role} ties its head to {own.embedding}: it is read from there as {pair.head}"
        note = Note(text, where=agent.where)
        return Head(with_head(agent, pair), (), (*notes, note))
    return Head(agent, ties if flag is True else (), notes)


def makes_text(config: Mapping[str, Any]) -> bool:
    """Whether the config names an architecture that needs an output head."""
    found = config.get("architectures")
    names = found if isinstance(found, list) else []
    return any(str(name).endswith(("ForCausalLM", "ForConditionalGeneration", "LMHeadModel")) for name in names)


def _check(ties: tuple[Tie, ...], *, here: bool) -> None:
    """Look whether heads are their embeddings: at the shapes and, where their numbers are here, in SPOTS places.

    Raises:
        DataError: one is not. That it is, is only sure when all of it was read.
    """
    for tie in ties:
        embedding, head = (tie.source.specs[name] for name in (tie.pair.embedding, tie.pair.head))
        if embedding.shape != head.shape or (here and _differs(tie.source, embedding, head)):
            raise untied(tie.source, embedding.name, head.name)


def _differs(source: Source, embedding: TensorSpec, head: TensorSpec) -> bool:
    for i in range(SPOTS):
        first = (embedding.elements - PIECE) * i // (SPOTS - 1) if embedding.elements > PIECE else 0
        blocks = [Block(spec, first, min(first + PIECE, spec.elements)) for spec in (embedding, head)]
        numbers, other = (source.weights.read(block) for block in blocks)
        if HeadDiffers().observe(Stack(blocks[0], numbers, (other,), ("head",))):
            return True
        if embedding.elements <= PIECE:
            break
    return False


def untied(source: Source, embedding: str, head: str) -> DataError:
    """A head that is not the embedding, although a config says so."""
    return DataError(
        f"{head}: in {source.role} ({source.text}) it differs from {embedding}",
        expected="equal tensors, as a config.json ties the two",
        todo="Set inputs.untie: true (--untie) to give the output a head of its own, starting from each source's "
        "embedding where it stores none, or correct the config.",
        where=replace(source.where, tensor=head),
    )


def with_head(source: Source, pair: HeadPair) -> Source:
    """The source itself when it stores a head, else with its embedding as head."""
    if pair.head in source.specs:
        return source
    if pair.embedding not in source.specs:
        raise AlignmentError(
            f"{pair.head}: {source.role} ({source.text}) has neither it nor {pair.embedding}",
            expected="one of them",
            todo="Is it a whole checkpoint?",
            where=Where(source.role, source.text, pair.head),
        )
    found = source.specs[pair.embedding]
    specs = {**source.specs, pair.head: TensorSpec(pair.head, found.dtype, found.shape)}
    head = FlatRange.all_of(source.weights, pair.embedding)
    return source.seen_as(RangeView(source.weights, specs, {pair.head: (head,)}))


def _head_of_base(base: Source, pair: HeadPair, *, tied: bool, untie: bool) -> Head:
    if untie:
        return Head(with_head(base, pair))
    ties = (Tie(base, pair),) if tied and pair.head in base.specs else ()
    _check(ties, here=not base.unseen)
    return Head(base, ties)


def _without_head(agent: Source, own: HeadPair, ties: tuple[Tie, ...], notes: tuple[Note, ...]) -> Head:
    """An agent of a base that stores no head."""
    if own.head not in agent.specs:
        return Head(agent, (), notes)
    text = f"its {own.head} repeats {own.embedding}, which the base ties; left out"
    if agent.unseen:
        text = (
            f"its {own.head} is left out if it repeats {own.embedding}, which the base ties: its numbers are not here"
        )
    note = Note(text, where=agent.where, named=True)
    seen = agent.seen_as(without(agent.weights, {own.head})) if ties else agent
    return Head(seen, ties, (*notes, note))


def _contradictions(agent: Source, config: Mapping[str, Any], own: HeadPair) -> tuple[Note, ...]:
    if own.head in agent.specs or tie_flag(config) is not False or not makes_text(config):
        return ()
    text = f"tie_word_embeddings is false in its config.json, but it stores no {own.head}"
    return (Note(text, where=agent.where, named=True),)


def _stored_head(source: Source, embedding: str, usual: str, untied: bool) -> str:
    """The head that a source stores beside an embedding; "" where it stores none."""
    rows, width = source.specs[embedding].shape
    fitting = {
        name: spec.shape[0]
        for name, spec in source.specs.items()
        if len(spec.shape) == 2 and spec.shape[1] == width and name != embedding and not NO_EMBEDDING.search(name)
    }
    alike = [name for name, height in fitting.items() if height == rows and not NO_HEAD.search(name)]
    named = [name for name in source.specs if name == usual or common_name(name) == common_name(usual)]
    called = [name for name, height in fitting.items() if HEAD.search(name) and 2 * height > rows]
    found = named or called or (alike if untied and len(alike) == 1 else [])
    return max(found, key=lambda name: _shared(name, embedding), default="")


def _shared(one: str, two: str) -> int:
    """How many parts two names have in common from the first on."""
    pairs = zip(one.split("."), two.split("."), strict=False)
    return sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], pairs))
