"""The same model under other tensor names: prefixes that trainers and exporters change, experts stacked or listed.

A mapping is used only when it is one to one and leaves nothing over.
"""

from __future__ import annotations

import re
from dataclasses import replace
from typing import TYPE_CHECKING

from agentmerge.alike.experts import arranged, is_expert
from agentmerge.alike.view import FlatRange, RangeView, widest
from agentmerge.errors import shortened
from agentmerge.sources.prefixes import common_name as common_name  # for those who look for it here
from agentmerge.tensors import TensorSpec

if TYPE_CHECKING:
    from collections.abc import Mapping

    from agentmerge.alike.family import Family
    from agentmerge.sources.source import Source

HEAD = re.compile(r"(?:^|\.)(?:lm_head|embed_out|output_layer)\.(?:weight|bias)$|^(?:output|ff_out)\.(?:weight|bias)$")
"""May be left over: tied heads are put right later."""


def base_names(family: Family) -> Family:
    """Every agent under the base's names and in its arrangement of experts, as far as they can be matched."""
    base, inputs = family.base, family.inputs
    missing, extra = inputs.missing == "base", inputs.extra == "ignore"
    family, found = family.each(lambda _, agent: renamed_like(base, agent, missing=missing, extra=extra))
    return replace(
        family,
        agents={name: agent for name, (agent, _) in found.items()},
        hints={name: hint for name, (_, hint) in found.items() if hint},
    )


def renamed_like(base: Source, agent: Source, *, missing: bool = False, extra: bool = False) -> tuple[Source, str]:
    """The agent itself, or as seen under the base's names and in the base's arrangement of experts.

    Args:
        base: decides the names.
        agent: as opened.
        missing: tensors of the base may be left over.
        extra: tensors of the agent may be left over.

    Returns:
        The agent, and a hint where its names look like the base's under another prefix, but not one to one.

    Raises:
        AlignmentError: experts that are arranged in another way which can't be told exactly.
    """
    if agent.specs.keys() == base.specs.keys():
        return agent, ""
    ours, theirs = _by_common_name(base), _by_common_name(agent)
    if ours is None or theirs is None:
        return agent, _ambiguous(base if ours is None else agent)
    lacking = {name: base.specs[ours[name]].shape for name in ours if name not in theirs}
    over = {name: theirs[name] for name in theirs if name not in ours}
    experts = arranged(lacking, agent, over)
    moved = {ours[name]: theirs[name] for name in theirs if name in ours and ours[name] != theirs[name]}
    if moved and not ((missing or all(map(_may_be_left, lacking))) and (extra or all(map(_may_be_left, over)))):
        return agent, _left_over(moved, [ours[name] for name in lacking], list(over.values()), agent)
    if not moved and not experts:
        return agent, ""
    return _seen(base, agent, ours, theirs, moved, experts), ""


def _may_be_left(name: str) -> bool:
    return bool(HEAD.search(name)) or is_expert(name)


def _by_common_name(source: Source) -> dict[str, str] | None:
    """Common name to stored name; None when two names become one."""
    found = {common_name(name): name for name in source.specs}
    return found if len(found) == len(source.specs) else None


def _seen(
    base: Source,
    agent: Source,
    ours: Mapping[str, str],
    theirs: Mapping[str, str],
    moved: Mapping[str, str],
    experts: Mapping[str, tuple[FlatRange, ...]],
) -> Source:
    """The agent with some tensors under other names, and its experts as the base's.

    Args:
        base: decides the shapes of the experts.
        agent: as opened.
        ours: common name to the base's.
        theirs: common name to the agent's.
        moved: the base's name to the agent's.
        experts: what the base's tensors are made of, by common name.
    """
    used = {part.tensor for parts in experts.values() for part in parts}
    ranges: dict[str, tuple[FlatRange, ...]] = {
        target: (FlatRange.all_of(agent.weights, name),) for target, name in moved.items()
    }
    ranges |= {ours[name]: parts for name, parts in experts.items()}
    names = {name: ours.get(common, name) for common, name in theirs.items() if name not in used}
    specs = {target: TensorSpec(target, agent.specs[n].dtype, agent.specs[n].shape) for n, target in names.items()}
    for name, parts in experts.items():
        like = base.specs[ours[name]]
        specs[like.name] = TensorSpec(like.name, widest(agent.specs[p.tensor].dtype for p in parts), like.shape)
    notes = []
    if moved:
        target, name = next(iter(moved.items()))
        notes.append(f"{agent.text}: {len(moved)} tensors are read under the base's names, for example {name} as "
                     f"{target}")  # fmt: skip
    if experts:
        notes.append(f"{agent.text}: {len(used)} tensors of experts are read as the base's {len(experts)}")
    return agent.seen_as(RangeView(agent.weights, specs, ranges), *notes)


def _left_over(moved: Mapping[str, str], lacking: list[str], over: list[str], agent: Source) -> str:
    target, name = next(iter(moved.items()))
    sides = []
    if lacking:
        sides.append(
            f"{len(lacking)} of the base would be left over ({shortened(lacking, 2)}; --missing base allows it)"
        )
    if over:
        sides.append(f"{len(over)} of {agent.role} would be left over ({shortened(over, 2)}; --extra ignore allows it)")
    return (
        f"{agent.role} seems to use another prefix, {name} for the base's {target}, but names are matched only one to "
        f"one: {' and '.join(sides)}."
    )


def _ambiguous(source: Source) -> str:
    seen: dict[str, str] = {}
    for name in source.specs:
        other = seen.setdefault(common_name(name), name)
        if other != name:
            both = f"{other} and {name} of {source.role}"
            return f"Names are not matched without their prefixes, as {both} would become one."
    return ""
