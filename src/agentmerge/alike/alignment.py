"""Match the base's tensors with every agent's by name. Knows no data, no methods and no architectures."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from agentmerge.errors import AlignmentError, shortened
from agentmerge.tensors import MERGEABLE

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping

    from agentmerge.sources.folder import Checkpoint
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
    base: Checkpoint,
    agents: Mapping[str, Checkpoint],
    *,
    missing_allowed: bool,
    extra_allowed: bool,
    excused: Collection[tuple[str, str]] = (),
    hints: Collection[str] = (),
) -> Alignment:
    """Match tensors by name.

    Args:
        base: decides names, shapes and order.
        agents: by name.
        missing_allowed: a tensor that an agent lacks counts as unchanged by it.
        extra_allowed: a tensor that the base lacks is left out.
        excused: (tensor, agent) pairs that are not read, so need not match.
        hints: why names could not be matched, for the message.

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
    try:
        _check_missing(base, lacking, missing_allowed, excused)
        _check_extra(ignored, extra_allowed)
    except AlignmentError as error:
        raise AlignmentError("\n".join([str(error), *(hint for hint in hints if hint)])) from None
    for agent, source in agents.items():
        for name in base.specs.keys() & source.specs.keys():
            if (name, agent) not in excused:
                _check_alike(base.specs[name], agent, source.specs[name])
    return Alignment(tuple(base.specs.values()), lacking, ignored)


def _check_missing(
    base: Checkpoint,
    lacking: Mapping[str, frozenset[str]],
    allowed: bool,
    excused: Collection[tuple[str, str]],
) -> None:
    by_agent: dict[str, list[str]] = {}
    for name, agents in lacking.items():
        for agent in sorted(agents):
            if (name, agent) not in excused:
                by_agent.setdefault(agent, []).append(name)
    for agent, names in by_agent.items():
        if len(names) == len(base.specs):
            raise AlignmentError(
                f"agent '{agent}' has none of the base's {len(names)} tensors (the base's first is {names[0]}). "
                "Is it a checkpoint of the same model?"
            )
    if by_agent and not allowed:
        lists = "\n".join(f"  agent '{a}' lacks {len(n)}: {shortened(n)}" for a, n in by_agent.items())
        raise AlignmentError(
            f"Tensors of the base are missing from agents:\n{lists}\n"
            "Expected the same tensors. Check the checkpoints, or set inputs.missing: base (--missing base) to count "
            "them as unchanged."
        )


def _check_extra(ignored: Mapping[str, tuple[str, ...]], allowed: bool) -> None:
    if ignored and not allowed:
        lists = "\n".join(f"  agent '{a}' has {len(n)} more: {shortened(n)}" for a, n in ignored.items())
        raise AlignmentError(
            f"Agents have tensors that the base lacks:\n{lists}\n"
            "Expected the same tensors. Check the checkpoints, or set inputs.extra: ignore (--extra ignore) to leave "
            "them out."
        )


def _check_alike(base: TensorSpec, agent: str, other: TensorSpec) -> None:
    if base.shape != other.shape:
        raise AlignmentError(
            f"{base.name}: agent '{agent}' has shape {list(other.shape)}, base has {list(base.shape)}. "
            "Is it an agent of this base? A rule that takes the base's tensor (take: base) leaves it out."
        )
    if base.dtype != other.dtype and not {base.dtype, other.dtype} <= MERGEABLE:
        raise AlignmentError(
            f"{base.name}: agent '{agent}' stores {other.dtype}, base stores {base.dtype}; expected both to be one of "
            f"{', '.join(sorted(MERGEABLE))}, or the same. Convert the agent, or add a rule that takes the base's."
        )
