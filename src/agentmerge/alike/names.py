"""The same model under other tensor names: prefixes that trainers and exporters change, experts stacked or listed.

A mapping is used only when it is one to one and leaves nothing over. Knows no agents' data and no methods.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING

from agentmerge.alike.experts import arranged, is_expert
from agentmerge.alike.view import Composed, Piece, whole, widest
from agentmerge.errors import shortened
from agentmerge.tensors import TensorSpec

if TYPE_CHECKING:
    from collections.abc import Mapping

    from agentmerge.sources.folder import Opened

WRAPPERS = re.compile(r"(?:(?<=\.)|^)(?:_orig_mod|_fsdp_wrapped_module|_checkpoint_wrapped_module)\.")
"""What torch.compile, FSDP and activation checkpointing put into a name, anywhere."""
PREFIXES = re.compile(
    r"^(?:(?:module|base_model|policy|actor|actor_module|pretrained_model|model|language_model|text_model|transformer)\.)+"
)
"""What trainers and the several generations of transformers put before a name."""
HEAD = re.compile(r"^(?:lm_head|embed_out|output)\.(?:weight|bias)$")
"""May be left over: tied heads are put right later."""


@dataclass(frozen=True)
class Renamed:
    """An agent under the base's names."""

    checkpoint: Opened
    hint: str = ""
    """Where names look like the base's under another prefix, but not one to one."""


def renamed_like(base: Opened, agent: Opened, who: str, *, missing: bool = False, extra: bool = False) -> Renamed:
    """The agent itself, or a view of it under the base's names and in the base's arrangement of experts.

    Args:
        base: decides the names.
        agent: as opened.
        who: for messages.
        missing: tensors of the base may be left over.
        extra: tensors of the agent may be left over.

    Raises:
        AlignmentError: experts that are arranged in another way which can't be told exactly.
    """
    if agent.specs.keys() == base.specs.keys():
        return Renamed(agent)
    ours, theirs = _by_common_name(base), _by_common_name(agent)
    if ours is None or theirs is None:
        return Renamed(agent, _ambiguous(base if ours is None else agent, "base" if ours is None else who))
    lacking = {name: base.specs[ours[name]].shape for name in ours if name not in theirs}
    over = {name: theirs[name] for name in theirs if name not in ours}
    experts = arranged(lacking, agent, over, who)
    used = {piece.tensor for pieces in experts.values() for piece in pieces}
    moved = {ours[name]: theirs[name] for name in theirs if name in ours and ours[name] != theirs[name]}
    if moved and not (
        (missing or all(HEAD.search(name) or is_expert(name) for name in lacking))
        and (extra or all(HEAD.search(name) or is_expert(name) for name in over))
    ):
        return Renamed(agent, _left_over(moved, [ours[name] for name in lacking], list(over.values()), who))
    if not moved and not experts:
        return Renamed(agent)
    pieces = {target: whole(agent, name) for target, name in moved.items()}
    pieces |= {ours[name]: parts for name, parts in experts.items()}
    names = {name: ours.get(common, name) for common, name in theirs.items() if name not in used}
    specs = {target: TensorSpec(target, agent.specs[n].dtype, agent.specs[n].shape) for n, target in names.items()}
    for name, parts in experts.items():
        specs[ours[name]] = _laid(agent, parts, base.specs[ours[name]])
    return Renamed(Composed(agent, specs, pieces, _notes(agent, moved, experts, used)))


def common_name(name: str) -> str:
    """A name without what trainers and exporters put before it."""
    return PREFIXES.sub("", WRAPPERS.sub("", name))


def _by_common_name(checkpoint: Opened) -> dict[str, str] | None:
    """Common name to stored name; None when two names become one."""
    found = {common_name(name): name for name in checkpoint.specs}
    return found if len(found) == len(checkpoint.specs) else None


def _laid(agent: Opened, parts: tuple[Piece, ...], like: TensorSpec) -> TensorSpec:
    return TensorSpec(like.name, widest(agent.specs[piece.tensor].dtype for piece in parts), like.shape)


def _notes(
    agent: Opened, moved: Mapping[str, str], experts: Mapping[str, tuple[Piece, ...]], used: set[str]
) -> tuple[str, ...]:
    notes = []
    if moved:
        target, name = next(iter(moved.items()))
        notes.append(f"{agent.source}: {len(moved)} tensors are read under the base's names, for example {name} as "
                     f"{target}")  # fmt: skip
    if experts:
        notes.append(f"{agent.source}: {len(used)} tensors of experts are read as the base's {len(experts)}")
    return tuple(notes)


def _left_over(moved: Mapping[str, str], lacking: list[str], over: list[str], who: str) -> str:
    target, name = next(iter(moved.items()))
    sides = []
    if lacking:
        sides.append(
            f"{len(lacking)} of the base would be left over ({shortened(lacking, 2)}; --missing base allows it)"
        )
    if over:
        sides.append(f"{len(over)} of {who} would be left over ({shortened(over, 2)}; --extra ignore allows it)")
    return (
        f"{who} seems to use another prefix, {name} for the base's {target}, but names are matched only one to one: "
        f"{' and '.join(sides)}."
    )


def _ambiguous(checkpoint: Opened, who: str) -> str:
    seen: dict[str, str] = {}
    for name in checkpoint.specs:
        other = seen.setdefault(common_name(name), name)
        if other != name:
            return f"Names are not matched without their prefixes, as {other} and {name} of {who} would become one."
    return ""
