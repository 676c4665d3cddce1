"""An output head that is, or may be, the embedding under a second name. Knows no methods and no data.

The base decides: where its config ties the head, the output has one tensor for both, stored once or twice as the base
stores it; an agent's redundant head is left out, a missing one is read from its embedding. That a redundant head is
equal is checked when the data is read (see `Tie`).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from agentmerge.checkpoint.views import Composed, whole
from agentmerge.checkpoint.vocab import EMBEDDINGS, HEADS
from agentmerge.errors import AlignmentError
from agentmerge.tensors import TensorSpec

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from agentmerge.checkpoint.reader import Opened


@dataclass(frozen=True)
class Tie:
    """Two tensors of one source that must be equal."""

    who: str
    source: Opened
    embedding: str
    head: str


@dataclass(frozen=True)
class Heads:
    """The sources with the same heads everywhere."""

    base: Opened
    agents: dict[str, Opened]
    embedding: str = ""
    head: str = ""
    """Where the output stores one tensor under two names; else ""."""
    ties: tuple[Tie, ...] = ()
    """To be checked when the data is read."""
    warnings: tuple[str, ...] = ()


def aligned_heads(
    base: Opened, agents: Mapping[str, Opened], configs: Mapping[str, Mapping[str, Any]], *, untie: bool
) -> Heads:
    """Give every source the base's form of head.

    Args:
        base: under the names of the output.
        agents: by name, under the base's names.
        configs: config.json of "base" and of every agent.
        untie: store the head of its own, starting from each source's embedding where it has none.

    Raises:
        AlignmentError: an agent's head can't be brought into the base's form.
    """
    embedding = _name([base], EMBEDDINGS, None)
    width = None if embedding is None else base.specs[embedding].shape[1:]
    head = _name([base], HEADS, width)
    stored = _name(agents.values(), HEADS, width) if head is None else head
    if embedding is None or stored is None:
        return Heads(base, dict(agents))
    if untie:
        view = _with_head(base, embedding, stored, "base")
        return Heads(view, {n: _with_head(a, embedding, stored, f"agent '{n}'") for n, a in agents.items()})
    if is_tied(configs["base"]) and head is None:
        return _dropped(base, agents, embedding, stored)
    if is_tied(configs["base"]):
        full = {n: _with_head(a, embedding, stored, f"agent '{n}'") for n, a in agents.items()}
        sources = {"base": base, **{f"agent '{n}'": a for n, a in agents.items()}}
        ties = tuple(Tie(who, s, embedding, stored) for who, s in sources.items() if stored in s.specs)
        return Heads(base, full, embedding, stored, ties)
    return _untied(base, agents, configs, embedding, stored)


def is_tied(config: Mapping[str, Any]) -> bool:
    """Whether config.json ties the head to the embedding; a text_config inside it counts."""
    text = config.get("text_config")
    inner = text.get("tie_word_embeddings") if isinstance(text, dict) else None
    return config.get("tie_word_embeddings", inner) is True


def _dropped(base: Opened, agents: Mapping[str, Opened], embedding: str, head: str) -> Heads:
    """The base has no head of its own: an agent's must be its embedding, and is left out."""
    views, ties, warnings = dict(agents), [], []
    for name, agent in agents.items():
        if head in agent.specs and embedding in agent.specs:
            views[name] = Composed(agent, {n: s for n, s in agent.specs.items() if n != head}, {})
            ties.append(Tie(f"agent '{name}'", agent, embedding, head))
            warnings.append(f"agent '{name}': its {head} repeats {embedding}, as the base's config ties them; left out")
    return Heads(base, views, ties=tuple(ties), warnings=tuple(warnings))


def _untied(
    base: Opened, agents: Mapping[str, Opened], configs: Mapping[str, Mapping[str, Any]], embedding: str, head: str
) -> Heads:
    """The base has a head of its own: an agent without one must say that it is tied."""
    views, ties, warnings = dict(agents), [], []
    for name, agent in agents.items():
        tied = is_tied(configs[name])
        if head in agent.specs and embedding in agent.specs and tied:
            ties.append(Tie(f"agent '{name}'", agent, embedding, head))
        if head not in agent.specs and embedding in agent.specs and tied:
            views[name] = _with_head(agent, embedding, head, f"agent '{name}'")
            warnings.append(f"agent '{name}' ties its head to {embedding}: it is read from there as {head}")
    return Heads(base, views, ties=tuple(ties), warnings=tuple(warnings))


def _with_head(source: Opened, embedding: str, head: str, who: str) -> Opened:
    """The source itself when it stores a head, else with its embedding as head."""
    if head in source.specs:
        return source
    if embedding not in source.specs:
        raise AlignmentError(f"{who} ({source.source}) has neither {head} nor {embedding}. Is it a whole checkpoint?")
    found = source.specs[embedding]
    specs = {**source.specs, head: TensorSpec(head, found.dtype, found.shape)}
    return Composed(source, specs, {head: whole(source, embedding)})


def _name(sources: Iterable[Opened], endings: tuple[str, ...], width: tuple[int, ...] | None) -> str | None:
    """The one matrix with one of these endings, of one or several sources; None for none or several names.

    Args:
        sources: to look in.
        endings: of the name.
        width: shape of a row; None for any.
    """
    found = {
        name
        for source in sources
        for name, spec in source.specs.items()
        if name.endswith(endings) and len(spec.shape) == 2 and width in (None, spec.shape[1:])
    }
    return found.pop() if len(found) == 1 else None
