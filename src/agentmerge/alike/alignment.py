"""Match the base's tensors with every agent's by name."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from agentmerge.errors import AlignmentError, Where, shortened
from agentmerge.tensors import MERGEABLE

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping

    from agentmerge.sources.source import Source
    from agentmerge.tensors import TensorSpec


@dataclass(frozen=True, slots=True)
class Alignment:
    """The base's tensors in its order, and which agents lack which of them."""

    specs: tuple[TensorSpec, ...]
    lacking: Mapping[str, frozenset[str]]
    """Tensor name to the agents without it; they count as unchanged there."""
    ignored: Mapping[str, tuple[str, ...]]
    """Agent name to its tensors that the base lacks."""


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
        AlignmentError: tensors are missing or extra without leave, or differ in shape or kind of number.
    """
    lacking: dict[str, frozenset[str]] = {}
    for name in base.specs:
        absent = frozenset(agent for agent, source in agents.items() if name not in source.specs)
        if absent:
            lacking[name] = absent
    ignored = {
        agent: extra
        for agent, source in agents.items()
        if (extra := tuple(name for name in source.specs if name not in base.specs))
    }
    told = "".join(f"\n{hint}" for agent, hint in (hints or {}).items() if agent in agents)
    _check_missing(base, agents, _by_agent(lacking, excused), missing_allowed, told)
    _check_extra(agents, ignored, extra_allowed, told)
    for agent, source in agents.items():
        for name in base.specs.keys() & source.specs.keys():
            if (name, agent) not in excused:
                _check_alike(base.specs[name], agent, source)
    return Alignment(tuple(base.specs.values()), lacking, ignored)


def _by_agent(lacking: Mapping[str, frozenset[str]], excused: Collection[tuple[str, str]]) -> dict[str, list[str]]:
    """Agent to the tensors that it lacks and that are read."""
    found: dict[str, list[str]] = {}
    for name, agents in lacking.items():
        for agent in sorted(agents):
            if (name, agent) not in excused:
                found.setdefault(agent, []).append(name)
    return found


def _check_missing(
    base: Source, agents: Mapping[str, Source], missing: Mapping[str, list[str]], allowed: bool, hints: str
) -> None:
    for agent, names in missing.items():
        if len(names) == len(base.specs):
            raise AlignmentError(
                f"agent '{agent}' has none of the base's {len(names)} tensors (the base's first is {names[0]})",
                todo=f"Is it a checkpoint of the same model?{hints}",
                where=agents[agent].where,
            )
    if missing and not allowed:
        lists = "\n".join(f"  agent '{a}' lacks {len(n)}: {shortened(n)}" for a, n in missing.items())
        raise AlignmentError(
            f"Tensors of the base are missing from agents:\n{lists}\n",
            expected="the same tensors",
            todo="Check the checkpoints, or set inputs.missing: base (--missing base) to count them as unchanged."
            + hints,
            where=_where(agents, missing),
        )


def _check_extra(
    agents: Mapping[str, Source], ignored: Mapping[str, tuple[str, ...]], allowed: bool, hints: str
) -> None:
    if ignored and not allowed:
        lists = "\n".join(f"  agent '{a}' has {len(n)} more: {shortened(n)}" for a, n in ignored.items())
        raise AlignmentError(
            f"Agents have tensors that the base lacks:\n{lists}\n",
            expected="the same tensors",
            todo="Check the checkpoints, or set inputs.extra: ignore (--extra ignore) to leave them out." + hints,
            where=_where(agents, ignored),
        )


def _check_alike(base: TensorSpec, name: str, agent: Source) -> None:
    other, where = agent.specs[base.name], Where(agent.role, agent.text, base.name)
    if base.shape != other.shape:
        raise AlignmentError(
            f"{base.name}: agent '{name}' has shape {list(other.shape)}, base has {list(base.shape)}",
            todo="Is it an agent of this base? A rule that takes the base's tensor (take: base) leaves it out.",
            where=where,
        )
    if base.dtype != other.dtype and not {base.dtype, other.dtype} <= MERGEABLE:
        raise AlignmentError(
            f"{base.name}: agent '{name}' stores {other.dtype}, base stores {base.dtype};",
            expected=f"both to be one of {', '.join(sorted(MERGEABLE))}, or the same",
            todo="Convert the agent, or add a rule that takes the base's.",
            where=where,
        )


def _where(agents: Mapping[str, Source], found: Mapping[str, object]) -> Where:
    """Whose problem it is, where it is one agent's alone."""
    names = list(found)
    return agents[names[0]].where if len(names) == 1 else Where()
