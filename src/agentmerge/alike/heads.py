"""An output head that is, or may be, the embedding under a second name. Knows no methods and no data.

The base decides. Where its config ties the head, the output has one tensor for both, stored once or twice as the base
stores it: an agent's redundant head is left out, a missing one is read from its embedding. Where the base has a head of
its own, an agent that ties it is read from its embedding. `untie` gives every source, and the output, a head of its
own. That a redundant head is equal to the embedding is checked when the data is read (see `Tie`).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from agentmerge.alike.names import common_name
from agentmerge.alike.view import Composed, whole, without
from agentmerge.errors import AlignmentError
from agentmerge.tensors import TensorSpec

if TYPE_CHECKING:
    from collections.abc import Mapping

    from agentmerge.sources.folder import Opened

HEAD_OF = {
    "embed_tokens.weight": "lm_head.weight",
    "wte.weight": "lm_head.weight",
    "word_embeddings.weight": "lm_head.weight",
    "tok_embeddings.weight": "output.weight",
    "embed_in.weight": "embed_out.weight",
}
"""The embeddings we know, and how the head beside each is called."""
INNER = "language_model.model."
"""Where older multimodal models keep their language model, head and all."""


@dataclass(frozen=True)
class Tie:
    """Two tensors of one source that must be equal."""

    who: str
    source: Opened
    embedding: str
    head: str


@dataclass(frozen=True)
class Pair:
    """The names of a source's embedding and head, stored or not."""

    embedding: str
    head: str


@dataclass(frozen=True)
class Headed:
    """An agent with the base's form of head."""

    agent: Opened
    ties: tuple[Tie, ...] = ()
    warnings: tuple[str, ...] = ()


def pair_of(checkpoint: Opened) -> Pair | None:
    """The one embedding of a language model and its head; None where there is none, or several."""
    found = [
        Pair(name, head)
        for name, spec in checkpoint.specs.items()
        if len(spec.shape) == 2 and ".layers." not in name and (head := _head_name(name)) is not None
    ]
    if len(found) != 1:
        return None
    pair = found[0]
    stored = [name for name in checkpoint.specs if common_name(name) == common_name(pair.head)]
    return Pair(pair.embedding, stored[0]) if stored else pair


def tie_flag(config: Mapping[str, Any]) -> bool | None:
    """Whether config.json ties the head to the embedding; None where it does not say. A text_config inside counts."""
    text = config.get("text_config")
    inner = text.get("tie_word_embeddings") if isinstance(text, dict) else None
    found = config.get("tie_word_embeddings", inner)
    return found if isinstance(found, bool) else None


def base_form(
    base: Opened, config: Mapping[str, Any], *, untie: bool
) -> tuple[Opened, Pair | None, bool, tuple[Tie, ...]]:
    """The base as the output will be: with a head of its own, or tied.

    Args:
        base: as named in the output.
        config: its config.json.
        untie: give it a head of its own, starting from the embedding where it stores none.

    Returns:
        The base, its pair, whether the two are tied, and what must be equal.

    Raises:
        AlignmentError: its config says that it has a head of its own, and it has none.
    """
    pair, flag = pair_of(base), tie_flag(config)
    if pair is None:
        return base, None, False, ()
    stored = pair.head in base.specs
    if untie:
        return with_head(base, pair, "base"), pair, False, ()
    if not stored and flag is False and makes_text(config):
        raise AlignmentError(
            f"{pair.head}: base ({base.source}) has none although tie_word_embeddings is false in its config.json, "
            "expected a head. Set the flag to true if it is tied, or pass --untie (inputs.untie) to give the output "
            "the embedding as a head of its own."
        )
    tied = flag is True or not stored
    ties = (Tie("base", base, pair.embedding, pair.head),) if tied and stored else ()
    return base, pair, tied, ties


def like_base(
    agent: Opened, config: Mapping[str, Any], name: str, base: Opened, pair: Pair, *, tied: bool, untie: bool
) -> Headed:
    """Give an agent the base's form of head.

    Args:
        agent: under the base's names.
        config: its config.json.
        name: of the agent.
        base: from `base_form`.
        pair: of the base.
        tied: whether the base ties them.
        untie: whether every source has a head of its own.

    Raises:
        AlignmentError: it has neither head nor embedding.
    """
    who, flag, own = f"agent '{name}'", tie_flag(config), pair_of(agent) or pair
    stored = own.head in agent.specs
    warnings = _contradictions(who, agent, config, own)
    if stored and own.head != pair.head and not (tied and pair.head not in base.specs):
        agent = _renamed(agent, own.head, pair.head)
        own = Pair(own.embedding, pair.head)
    if untie:
        return Headed(agent if stored else with_head(agent, own, who), (), warnings)
    tie = (Tie(who, agent, own.embedding, own.head),) if stored and own.embedding in agent.specs else ()
    if tied and pair.head not in base.specs:
        if not stored:
            return Headed(agent, (), warnings)
        note = f"{who}: its {own.head} repeats {own.embedding}, which the base ties; left out"
        return Headed(without(agent, {own.head}) if tie else agent, tie, (*warnings, note))
    if tied:
        return Headed(agent if stored else with_head(agent, own, who), tie, warnings)
    if not stored and flag is True and own.embedding in agent.specs:
        note = f"{who} ties its head to {own.embedding}: it is read from there as {pair.head}"
        return Headed(with_head(agent, pair, who), (), (*warnings, note))
    return Headed(agent, tie if flag is True else (), warnings)


def makes_text(config: Mapping[str, Any]) -> bool:
    """Whether the config names an architecture that needs an output head."""
    found = config.get("architectures")
    names = found if isinstance(found, list) else []
    return any(str(name).endswith(("ForCausalLM", "ForConditionalGeneration", "LMHeadModel")) for name in names)


def with_head(source: Opened, pair: Pair, who: str) -> Opened:
    """The source itself when it stores a head, else with its embedding as head."""
    if pair.head in source.specs:
        return source
    if pair.embedding not in source.specs:
        raise AlignmentError(
            f"{pair.head}: {who} ({source.source}) has neither it nor {pair.embedding}, expected one of them. Is it a "
            "whole checkpoint?"
        )
    found = source.specs[pair.embedding]
    specs = {**source.specs, pair.head: TensorSpec(pair.head, found.dtype, found.shape)}
    return Composed(source, specs, {pair.head: whole(source, pair.embedding)})


def _contradictions(who: str, agent: Opened, config: Mapping[str, Any], own: Pair) -> tuple[str, ...]:
    if own.head in agent.specs or tie_flag(config) is not False or not makes_text(config):
        return ()
    return (f"{who}: tie_word_embeddings is false in its config.json, but it stores no {own.head}",)


def _renamed(source: Opened, name: str, target: str) -> Opened:
    specs = {target if n == name else n: s for n, s in source.specs.items()}
    specs[target] = TensorSpec(target, source.specs[name].dtype, source.specs[name].shape)
    return Composed(source, specs, {target: whole(source, name)})


def _head_name(name: str) -> str | None:
    """How the head beside an embedding of this name is called; None when it is no embedding we know."""
    for embedding, head in HEAD_OF.items():
        if name == embedding or name.endswith(f".{embedding}"):
            return f"language_model.{head}" if name.startswith(INNER) else head
    return None
