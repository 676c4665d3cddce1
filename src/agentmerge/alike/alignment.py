"""Match the base's tensors with every agent's by name."""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from agentmerge.errors import AlignmentError, MergeError, Note, Problem, Where, role_of, shortened
from agentmerge.tensors import MERGEABLE

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator, Mapping, Sequence

    from agentmerge.alike.family import Family
    from agentmerge.sources.source import Source
    from agentmerge.tensors import TensorSpec

SCORES = re.compile(r"(?:^|\.)(?:v_head|value_head|score|classifier|reward_head|regression_head|critic_head|rm_head)\b")
"""Heads of reward models, classifiers and critics, which are trained beside an agent and are none."""
IT_SCORES = "Such a head makes a reward model, classifier or critic: give the policy's checkpoint. "


@dataclass(frozen=True, slots=True)
class Alignment:
    """The base's tensors in its order, and which agents lack which of them."""

    specs: tuple[TensorSpec, ...]
    lacking: Mapping[str, frozenset[str]]
    """Tensor name to the agents without it; they count as unchanged there."""
    ignored: Mapping[str, tuple[str, ...]]
    """Agent name to its tensors that the base lacks."""


@dataclass(frozen=True, slots=True)
class _Sides:
    """What an agent has otherwise than the base."""

    lacks: list[str]
    """Of the base's tensors, those that are read and that it has not."""
    more: list[str]
    """Its own that the base has not."""
    renamed: dict[str, str]
    """Of `more`, those that look like one of `lacks`."""


def aligned(family: Family) -> Family:
    """Every agent whose tensors match the base's, and a note of what was allowed to be missing or left out."""
    inputs, base = family.inputs, family.base
    read = {name: [t for t in base.specs if family.reads(t, name)] for name in family.agents}
    family, found = family.each(
        lambda name, agent: _checked(
            base,
            name,
            agent,
            read[name],
            (inputs.missing == "base", inputs.extra == "ignore"),
            family.hints.get(name, ""),
        )
    )
    texts = {name: _allowed(sides, len(base.specs)) for name, sides in found.items()}
    notes = [Note(text, where=family.agents[n].where, named=True) for n, said in texts.items() for text in said]
    return replace(family, alignment=_alignment(base, family.agents)).noted(*notes)


def align(
    base: Source,
    agents: Mapping[str, Source],
    *,
    missing_allowed: bool,
    extra_allowed: bool,
    excused: Collection[tuple[str, str]] = (),
    hints: Mapping[str, str] | None = None,
) -> Alignment:
    """Match tensors by name.

    Args:
        base: decides names, shapes and order.
        agents: by name.
        missing_allowed: a tensor that an agent lacks counts as unchanged by it.
        extra_allowed: a tensor that the base lacks is left out.
        excused: (tensor, agent) pairs that are not read, so need not match.
        hints: by agent, why its names could not be matched, for the message.

    Raises:
        AlignmentError: tensors are missing or extra without leave, or differ in shape or kind of number; a problem per
            agent tells both sides.
    """
    problems: list[Problem] = []
    for name, agent in agents.items():
        read = [tensor for tensor in base.specs if (tensor, name) not in excused]
        try:
            _checked(base, name, agent, read, (missing_allowed, extra_allowed), (hints or {}).get(name, ""))
        except MergeError as error:
            problems += error.problems
    if problems:
        raise AlignmentError(*problems)
    return _alignment(base, agents)


def _alignment(base: Source, agents: Mapping[str, Source]) -> Alignment:
    lacking = {
        name: absent
        for name in base.specs
        if (absent := frozenset(agent for agent, source in agents.items() if name not in source.specs))
    }
    extra = {agent: tuple(n for n in source.specs if n not in base.specs) for agent, source in agents.items()}
    return Alignment(tuple(base.specs.values()), lacking, {agent: names for agent, names in extra.items() if names})


def _checked(
    base: Source, name: str, agent: Source, read: Sequence[str], allowed: tuple[bool, bool], hint: str
) -> _Sides:
    """What one agent has otherwise, where that is allowed.

    Args:
        base: decides names and shapes.
        name: of the agent.
        agent: under the base's names as far as they could be matched.
        read: the base's tensors that are read of it.
        allowed: whether tensors may be missing, and whether there may be more.
        hint: why its names could not be matched.
    """
    lacks = [tensor for tensor in read if tensor not in agent.specs]
    more = [tensor for tensor in agent.specs if tensor not in base.specs]
    sides = _Sides(lacks, more, _renamed(base, agent, lacks, more))
    missing, extra = allowed
    if lacks and len(lacks) == len(base.specs):
        raise AlignmentError(
            f"{role_of(name)} has none of the base's {len(lacks)} tensors (the base's first is {lacks[0]})"
            f"{_looks(sides)}",
            todo="Is it a checkpoint of the same model?" + (f"\n{hint}" if hint else ""),
            where=agent.where,
        )
    if (lacks and not missing) or (more and not extra):
        raise _other_tensors(name, agent, sides, allowed, hint)
    for tensor in read:
        if tensor in agent.specs:
            _check_alike(base.specs[tensor], name, agent)
    return sides


def _other_tensors(name: str, agent: Source, sides: _Sides, allowed: tuple[bool, bool], hint: str) -> AlignmentError:
    """The error that lists both sides, and advises a way round only where it loses no training."""
    lacks, more, (missing, extra) = sides.lacks, sides.more, allowed
    lines = [f"  {role_of(name)} lacks {len(lacks)}: {shortened(lacks)}"] if lacks else []
    lines += [f"  {role_of(name)} has {len(more)} more: {shortened(more)}"] if more else []
    what = "other tensors than the base" if lacks and more else "not all of the base's tensors" if lacks else (
        "tensors that the base lacks")  # fmt: skip
    ways = ["set inputs.missing: base (--missing base) to count them as unchanged"] if lacks and not missing else []
    ways += ["set inputs.extra: ignore (--extra ignore) to leave them out"] if more and not extra else []
    todo = f"Check the checkpoints, or {' and '.join(ways)}."
    if sides.renamed:
        todo = (
            "Give its tensors the base's names: leaving them out, or counting the base's as unchanged, would drop what "
            "was trained in them."
        )
    if any(SCORES.search(tensor) for tensor in more):
        todo = IT_SCORES + todo
    return AlignmentError(
        f"{role_of(name)} has {what}:\n" + "\n".join(lines) + _looks(sides) + "\n",
        expected="the same tensors",
        todo=todo + (f"\n{hint}" if hint else ""),
        where=agent.where,
    )


def _looks(sides: _Sides) -> str:
    """The pairs that look like one tensor under two names."""
    pairs = [f"{theirs} for {ours}" for theirs, ours in sides.renamed.items()]
    return f"\n  looks renamed: {shortened(pairs, 3)}" if pairs else ""


def _allowed(sides: _Sides, total: int) -> Iterator[str]:
    """What a merge tells of an agent whose tensors are others with leave."""
    if sides.lacks:
        count = f"lacks {len(sides.lacks)} of the base's {total} tensors"
        yield f"{count} and counts as unchanged there: {shortened(sides.lacks)}"
    if sides.more:
        yield f"{len(sides.more)} tensors that the base lacks are left out"
    if sides.renamed:
        yield f"what was trained in {len(sides.renamed)} tensors is lost if they are the base's own:{_looks(sides)}"


def _renamed(base: Source, agent: Source, lacks: Sequence[str], more: Sequence[str]) -> dict[str, str]:
    """The agent's tensors that look like one that it lacks: of its shape, its layer, and most of its name."""
    places: dict[tuple[object, ...], list[str]] = {}
    for ours in lacks:
        places.setdefault((base.specs[ours].shape, *_numbers(ours)), []).append(ours)
    found: dict[str, str] = {}
    for theirs in more:
        near = places.get((agent.specs[theirs].shape, *_numbers(theirs)), [])
        best = max(near, key=lambda ours: _likeness(ours, theirs), default="")
        if best and _likeness(best, theirs) >= 0.5:
            found[theirs] = best
            near.remove(best)
    return found


def _numbers(name: str) -> Iterator[str]:
    """The layer, and whatever else is counted in a name."""
    return (part for part in name.split(".") if part.isdigit())


def _likeness(ours: str, theirs: str) -> float:
    """The share of the parts of two names that both have, 0 to 1."""
    one, two = ours.split("."), theirs.split(".")
    both = sum(min(one.count(part), two.count(part)) for part in {*one})
    return both / max(len(one), len(two))


def _check_alike(base: TensorSpec, name: str, agent: Source) -> None:
    other, where = agent.specs[base.name], Where(agent.role, agent.text, base.name)
    if base.shape != other.shape:
        raise AlignmentError(
            f"{base.name}: {role_of(name)} has shape {list(other.shape)}, base has {list(base.shape)}",
            todo="Is it an agent of this base? A rule that takes the base's tensor (take: base) leaves it out, and "
            "what was trained in it.",
            where=where,
        )
    if base.dtype != other.dtype and not {base.dtype, other.dtype} <= MERGEABLE:
        raise AlignmentError(
            f"{base.name}: {role_of(name)} stores {other.dtype}, base stores {base.dtype};",
            expected=f"both to be one of {', '.join(sorted(MERGEABLE))}, or the same",
            todo="Convert the agent, or, where the tensor is a buffer that training does not touch, add a rule that "
            "takes the base's.",
            where=where,
        )
