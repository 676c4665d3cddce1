"""Mixture-of-experts weights in another arrangement: stacked in one tensor, or listed one by one.

    stacked    STEM.gate_up_proj [experts, 2 * rows, columns]: each expert's gate, then its up; STEM.down_proj
    listed     STEM.0.gate_proj.weight [rows, columns], STEM.0.up_proj.weight, STEM.0.down_proj.weight, STEM.1. ...

Both store a matrix as torch's Linear does. Other arrangements (transposed, interleaved) are refused, and so is a
square matrix, whose orientation can't be told from its shape.
"""

from __future__ import annotations

import re
from collections import Counter
from typing import TYPE_CHECKING

from agentmerge.alike.view import FlatRange
from agentmerge.errors import AlignmentError, Where

if TYPE_CHECKING:
    from collections.abc import Mapping

    from agentmerge.sources.source import Source

LISTED = re.compile(r"^(?P<stem>.*\.experts)\.(?P<index>\d+)\.(?P<part>gate_proj|up_proj|down_proj)\.weight$")
STACKED = re.compile(r"^(?P<stem>.*\.experts)\.(?P<part>gate_up_proj|gate_proj|up_proj|down_proj)(?:\.weight)?$")
ADVICE = (
    "Save both with the same version of transformers. A rule can take these tensors from the base, which leaves out "
    "what was trained in them."
)


def arranged(
    base: Mapping[str, tuple[int, ...]], agent: Source, stored: Mapping[str, str]
) -> dict[str, tuple[FlatRange, ...]]:
    """The base's expert tensors made of the agent's; {} where both are arranged alike.

    Args:
        base: shapes of the base's tensors that the agent lacks, by common name.
        agent: as stored.
        stored: common name to stored name of the agent's tensors that the base lacks.

    Raises:
        AlignmentError: an arrangement that can't be turned exactly into the base's.
    """
    if any(map(LISTED.match, base)) and any(map(STACKED.match, stored)):
        count = Counter((m["stem"], m["part"]) for m in map(LISTED.match, base) if m)
        return {name: _cut(name, base[name], count, agent, stored) for name in base if LISTED.match(name)}
    if any(map(STACKED.match, base)) and any(map(LISTED.match, stored)):
        return {name: _stack(name, base[name], agent, stored) for name in base if STACKED.match(name)}
    return {}


def is_expert(name: str) -> bool:
    """Whether a tensor's name is one of a listed or stacked expert."""
    return bool(LISTED.match(name) or STACKED.match(name))


def _cut(
    name: str,
    shape: tuple[int, ...],
    count: Mapping[tuple[str, str], int],
    agent: Source,
    stored: Mapping[str, str],
) -> tuple[FlatRange, ...]:
    """One listed matrix out of the agent's stack."""
    found = LISTED.match(name)
    assert found is not None
    stem, part, index = found["stem"], found["part"], int(found["index"])
    if len(shape) != 2:
        raise _error(agent, name, f"{name}: the base has shape {list(shape)}", "[rows, columns]")
    rows, columns = shape
    source, height = _first(stored, f"{stem}.{part}"), rows
    if source is None and part != "down_proj":
        source, height = _first(stored, f"{stem}.gate_up_proj"), 2 * rows
    if source is None:
        raise _error(agent, name, f"{name}: {agent.role} has no tensor that could hold it", f"{stem}.{part}")
    stack = agent.specs[stored[source]].shape
    _check_stack(source, stack, (height, columns), agent)
    listed = count[stem, part]
    if stack[0] != listed or index >= listed:
        raise _error(agent, source, f"{source}: {agent.role} stacks {stack[0]} experts", f"the base's {listed}")
    half = rows * columns if height != rows and part == "up_proj" else 0
    return (FlatRange(agent.weights, stored[source], index * height * columns + half, rows * columns),)


def _stack(name: str, shape: tuple[int, ...], agent: Source, stored: Mapping[str, str]) -> tuple[FlatRange, ...]:
    """One of the base's stacks out of the agent's listed matrices."""
    found = STACKED.match(name)
    assert found is not None
    stem, parts = found["stem"], ("gate_proj", "up_proj") if found["part"] == "gate_up_proj" else (found["part"],)
    if len(shape) != 3:
        raise _error(agent, name, f"{name}: the base has shape {list(shape)}", "[experts, rows, columns]")
    ranges = []
    for listed in (f"{stem}.{index}.{part}.weight" for index in range(shape[0]) for part in parts):
        if listed not in stored:
            raise _error(agent, name, f"{name}: {agent.role} lacks {listed}", f"all {shape[0]} experts")
        matrix = agent.specs[stored[listed]].shape
        if len(matrix) != 2:
            raise _error(agent, listed, f"{listed}: {agent.role} has shape {list(matrix)}", "[rows, columns]")
        _check_stack(name, shape, (matrix[0] * len(parts), matrix[1]), agent)
        ranges.append(FlatRange.all_of(agent.weights, stored[listed]))
    return tuple(ranges)


def _check_stack(name: str, shape: tuple[int, ...], matrix: tuple[int, int], agent: Source) -> None:
    """Matrices as torch's Linear stores them; transposed ones, or a square, can't be told for certain."""
    if len(shape) == 3 and shape[1:] == matrix and matrix[0] != matrix[1]:
        return
    square = "A square matrix may be stored either way round. " if shape[1:] == matrix else ""
    found = f"{name}: {agent.role} arranges its experts otherwise than the base: found shape {list(shape)}"
    raise _error(agent, name, found, f"[experts, {matrix[0]}, {matrix[1]}]", square)


def _error(agent: Source, tensor: str, found: str, expected: str, more: str = "") -> AlignmentError:
    where = Where(agent.role, agent.text, tensor)
    return AlignmentError(found, expected=expected, todo=f"{more}{ADVICE}", where=where)


def _first(stored: Mapping[str, str], name: str) -> str | None:
    return next((found for found in (name, f"{name}.weight") if found in stored), None)
