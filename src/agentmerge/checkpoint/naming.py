"""The same model under other tensor names: prefixes that trainers and exporters change, experts stacked or listed.

A mapping is used only when it is one to one and leaves nothing over. Knows no agents and no data.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from agentmerge.checkpoint.views import Composed, Piece, whole
from agentmerge.errors import AlignmentError
from agentmerge.tensors import TensorSpec

if TYPE_CHECKING:
    from collections.abc import Mapping

    from agentmerge.checkpoint.reader import Opened

REWRITES = (
    (re.compile(r"^(?:_orig_mod\.|module\.|base_model\.model\.|policy\.|actor\.)+"), ""),
    (re.compile(r"\._orig_mod\.|\._fsdp_wrapped_module\.|\._checkpoint_wrapped_module\."), "."),
    (re.compile(r"^_fsdp_wrapped_module\."), ""),
    (re.compile(r"^(?:model\.)?language_model\.lm_head\."), "lm_head."),
    (re.compile(r"^(?:model\.)?language_model\.(?:model\.)?"), "model."),
    (re.compile(r"^model\.(visual|vision_tower|vision_model|multi_modal_projector|audio_tower)\."), r"\1."),
)
"""Each turns a rewritten name into a common one, in this order."""

LISTED = re.compile(r"^(?P<stem>.*\.experts)\.(?P<index>\d+)\.(?P<part>gate_proj|up_proj|down_proj)\.weight$")
FUSED = re.compile(r"^(?P<stem>.*\.experts)\.(?P<part>gate_up_proj|gate_proj|up_proj|down_proj)(?:\.weight)?$")


def renamed_like(base: Opened, agent: Opened, who: str) -> Opened:
    """The agent itself, or a view of it under the base's names and in the base's arrangement of experts.

    Args:
        base: decides the names.
        agent: as opened.
        who: for messages.

    Raises:
        AlignmentError: experts that are arranged in another way which can't be told exactly.
    """
    if agent.specs.keys() == base.specs.keys():
        return agent
    found = _by_prefix(base, agent)
    if found is not None:
        agent = found
    return _experts(base, agent, who)


def common_name(name: str) -> str:
    """A name without what trainers and exporters put before it."""
    for pattern, replacement in REWRITES:
        name = pattern.sub(replacement, name)
    return name


def _by_prefix(base: Opened, agent: Opened) -> Opened | None:
    """A view under the base's names when each agent tensor outside the base's names finds a partner; else None."""
    ours, theirs = _unique(base.specs), _unique(agent.specs)
    if ours is None or theirs is None:
        return None
    pairs = {ours.get(common, name): name for common, name in theirs.items()}
    moved = {target: name for target, name in pairs.items() if target != name}
    if not moved or any(target not in base.specs for target in moved):
        return None
    specs = {
        target: TensorSpec(target, agent.specs[name].dtype, agent.specs[name].shape) for target, name in pairs.items()
    }
    pieces = {target: whole(agent, name) for target, name in moved.items()}
    example = next(iter(moved.items()))
    note = f"{agent.source}: {len(moved)} tensors are named as in the base, for example {example[1]} as {example[0]}"
    return Composed(agent, specs, pieces, (note,))


def _unique(specs: Mapping[str, TensorSpec]) -> dict[str, str] | None:
    """Common name to stored name; None when two names become one."""
    found = {common_name(name): name for name in specs}
    return found if len(found) == len(specs) else None


def _experts(base: Opened, agent: Opened, who: str) -> Opened:
    """Cut the agent's stacked experts into the base's listed ones, or stack its listed ones."""
    ours, theirs = base.specs.keys() - agent.specs.keys(), agent.specs.keys() - base.specs.keys()
    if any(LISTED.match(name) for name in ours) and any(FUSED.match(name) for name in theirs):
        pieces = {name: _cut(base, agent, name, who) for name in sorted(ours) if LISTED.match(name)}
    elif any(FUSED.match(name) for name in ours) and any(LISTED.match(name) for name in theirs):
        pieces = {name: _stacked(base, agent, name, who) for name in sorted(ours) if FUSED.match(name)}
    else:
        return agent
    used = {piece.tensor for parts in pieces.values() for piece in parts}
    specs = {name: spec for name, spec in agent.specs.items() if name not in used}
    for name, parts in pieces.items():
        specs[name] = TensorSpec(name, agent.specs[parts[0].tensor].dtype, base.specs[name].shape)
    note = f"{agent.source}: the experts are arranged as in the base ({len(used)} stored tensors, {len(pieces)} there)"
    return Composed(agent, specs, pieces, (note,))


def _cut(base: Opened, agent: Opened, name: str, who: str) -> tuple[Piece, ...]:
    """One listed expert matrix out of the agent's stack [experts, rows, columns]."""
    found = LISTED.match(name)
    assert found is not None
    stem, index, part = found["stem"], int(found["index"]), found["part"]
    rows, columns = base.specs[name].shape
    fused = _first(agent, [f"{stem}.{part}", f"{stem}.{part}.weight"])
    place, height = index, rows
    if fused is None and part != "down_proj":
        fused = _first(agent, [f"{stem}.gate_up_proj", f"{stem}.gate_up_proj.weight"])
        height = 2 * rows
    if fused is None:
        raise AlignmentError(f"{name}: {who} has no tensor that could hold this expert. {_ADVICE}")
    shape = agent.specs[fused].shape
    _check_stack(fused, shape, (height, columns), who)
    if place >= shape[0]:
        raise AlignmentError(f"{name}: {who} stacks {shape[0]} experts in {fused}, the base has more. {_ADVICE}")
    half = rows * columns if height != rows and part == "up_proj" else 0
    return (Piece(agent, fused, place * height * columns + half, rows * columns),)


def _stacked(base: Opened, agent: Opened, name: str, who: str) -> tuple[Piece, ...]:
    """One of the base's stacks [experts, rows, columns] out of the agent's listed matrices."""
    found = FUSED.match(name)
    assert found is not None
    parts = ("gate_proj", "up_proj") if found["part"] == "gate_up_proj" else (found["part"],)
    shape = base.specs[name].shape
    if len(shape) != 3:
        raise AlignmentError(f"{name}: the base has shape {list(shape)}, expected [experts, rows, columns]. {_ADVICE}")
    pieces = []
    for index in range(shape[0]):
        for part in parts:
            listed = f"{found['stem']}.{index}.{part}.weight"
            if listed not in agent.specs:
                raise AlignmentError(f"{name}: {who} lacks {listed}, which the base's stack holds. {_ADVICE}")
            rows, columns = agent.specs[listed].shape
            _check_stack(name, shape, (rows * len(parts), columns), who)
            pieces.append(Piece(agent, listed, 0, rows * columns))
    return tuple(pieces)


def _check_stack(name: str, shape: tuple[int, ...], matrix: tuple[int, int], who: str) -> None:
    """A stack of matrices as torch's Linear stores them; transposed ones, or a square, can't be told for certain."""
    if len(shape) == 3 and shape[1:] == matrix and matrix[0] != matrix[1]:
        return
    square = " A square matrix may be stored either way round." if shape[1:] == matrix else ""
    raise AlignmentError(
        f"{name}: experts of {who} are arranged otherwise than the base's: found shape {list(shape)}, expected "
        f"[experts, {matrix[0]}, {matrix[1]}].{square} {_ADVICE}"
    )


_ADVICE = "Save both with the same version of transformers, or take these tensors from the base with a rule."


def _first(agent: Opened, names: list[str]) -> str | None:
    return next((name for name in names if name in agent.specs), None)
