"""Float sums that come out the same however the elements were divided.

A tensor's elements lie on leaves of LEAF elements, counted from its start, and a leaf is added in one fixed order.
From there on there are two ways:

    TreeSums     two finished neighbours of one level make a node of the next, as in a binary tree; so any division of
                 the tensor at leaf edges, folded in any order, ends with the same nodes, and the same bits. Every
                 tensor keeps its nodes: methods may feed on these sums
    fixed sums   the leaves' sums are added exactly, as integers: a sum over millions of leaves is one number, of
                 whatever size, which is enough for a report
"""

from __future__ import annotations

from dataclasses import dataclass, field
from math import inf, nan
from typing import TYPE_CHECKING, Any

import numpy as np

from agentmerge.survey.answers import Answers, Form, Gathered, Integers
from agentmerge.tensors import LEAF, RUNNING, Array

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

_LOWEST, _STEP, _UPPER, _LOWER = -1073, 4, 27, 26
"""A leaf's sum is m * 2^e, 1/2 <= m < 1: e counts from _LOWEST in steps of so many bits, m is halved at these bits."""
POINT = _UPPER + _LOWER - _LOWEST
"""A fixed sum is an integer of 2^-POINT: every float64 is one."""
_UNKNOWN = 1 << 2 * POINT
"""Beyond any sum of float64: a leaf that is NaN or inf."""

Node = tuple[int, int]
"""Level and place: the node covers leaves [place << level, (place + 1) << level)."""


@dataclass(frozen=True, slots=True)
class TreeSums:
    """Sums of `rows` quantities per tensor, as the nodes that are finished so far."""

    rows: int
    nodes: Mapping[str, Mapping[Node, tuple[float, ...]]] = field(default_factory=dict)
    """Tensor name to its finished nodes, none of which has its neighbour."""

    def __add__(self, other: TreeSums) -> TreeSums:
        """The sums over two disjoint sets of leaves."""
        return TreeSums.joined((self, other))

    @classmethod
    def joined(cls, sums: Sequence[TreeSums]) -> TreeSums:
        """The sums over disjoint sets of leaves, one or more."""
        nodes: dict[str, dict[Node, tuple[float, ...]]] = {}
        for one in sums:
            for name, found in one.nodes.items():
                mine = nodes.setdefault(name, {})
                for node, value in found.items():
                    _insert(mine, node, value)
        return cls(sums[0].rows, nodes)

    def total(self) -> Array:
        """float64 [rows]: nodes from left to right, tensors in the order of their names."""
        result = np.zeros(self.rows)
        for name in sorted(self.nodes):
            tensor = np.zeros(self.rows)
            for _, value in sorted(self.nodes[name].items(), key=lambda item: item[0][1] << item[0][0]):
                tensor += value
            result += tensor
        return result

    def of(self, tensor: str) -> TreeSums:
        """The sums over one tensor alone."""
        return TreeSums(self.rows, {tensor: self.nodes.get(tensor, {})})


class TreeSumsOf(Gathered[TreeSums]):
    """Answers are TreeSums."""

    def gather(self, answers: Sequence[TreeSums]) -> TreeSums:
        """Exact in any order."""
        return TreeSums.joined(answers)

    def encode(self, answer: TreeSums) -> Any:
        """Rows and nodes; JSON writes floats in their shortest exact form."""
        nodes = {n: [[*node, *value] for node, value in sorted(found.items())] for n, found in answer.nodes.items()}
        return {"rows": answer.rows, "nodes": nodes}

    def decode(self, data: Any) -> TreeSums:
        """What `encode` wrote."""
        nodes = {
            name: {(int(node[0]), int(node[1])): tuple(map(float, node[2:])) for node in found}
            for name, found in data["nodes"].items()
        }
        return TreeSums(int(data["rows"]), nodes)


def tree_sums(values: Array, tensor: str, start: int) -> TreeSums:
    """Sum each row of float64 [rows, n], which begins at element `start` of the tensor, a multiple of LEAF."""
    return tree_of(leaf_sums(values), tensor, start)


def tree_of(leaves: Array, tensor: str, start: int) -> TreeSums:
    """The sums of the leaves, float64 [leaves, rows], that begin at element `start` of the tensor.

    Level by level: every even place and its right neighbour become one node; what has no neighbour here stays.
    """
    nodes: dict[Node, tuple[float, ...]] = {}
    values, place, level = leaves, start // LEAF, 0
    while len(values):
        if place & 1:
            nodes[level, place] = tuple(values[0].tolist())
            values, place = values[1:], place + 1
        if len(values) & 1:
            nodes[level, place + len(values) - 1] = tuple(values[-1].tolist())
            values = values[:-1]
        values, place, level = values[::2] + values[1::2], place >> 1, level + 1
    return TreeSums(leaves.shape[1], {tensor: nodes} if nodes else {})


def leaf_sums(values: Array) -> Array:
    """float64 [rows, n] to the sum of each leaf, float64 [leaves, rows]; the last leaf may be short."""
    rows, n = values.shape
    leaves = -(-n // LEAF)
    padded = np.zeros((rows, leaves * LEAF))
    padded[:, :n] = values
    steps = padded.reshape(rows, leaves, LEAF // RUNNING, RUNNING)
    lanes = np.zeros((rows, leaves, RUNNING))
    for step in range(LEAF // RUNNING):
        lanes += steps[:, :, step]
    while lanes.shape[2] > 1:
        half = lanes.shape[2] // 2
        lanes = lanes[:, :, :half] + lanes[:, :, half:]
    return lanes[:, :, 0].T


def _insert(nodes: dict[Node, tuple[float, ...]], node: Node, value: tuple[float, ...]) -> None:
    """Put a node in, and join neighbours for as long as there are two."""
    level, place = node
    while (neighbour := nodes.pop((level, place ^ 1), None)) is not None:
        left, right = (neighbour, value) if place & 1 else (value, neighbour)
        value = tuple(a + b for a, b in zip(left, right, strict=True))
        level, place = level + 1, place >> 1
    nodes[level, place] = value


def fixed_sums(leaves: Array) -> tuple[int, ...]:
    """float64 [leaves, rows] to the exact sum over the leaves, an integer of 2^-POINT per row; up to 2^22 leaves.

    A leaf that is not finite makes its row's sum unknown, whatever is added to it later.
    """
    mantissa, exponent = np.frexp(np.where(np.isfinite(leaves), leaves, 0.0))
    place, shift = np.divmod(exponent - _LOWEST, _STEP)
    upper = np.floor(mantissa * 2.0**_UPPER)
    lower = (mantissa * 2.0**_UPPER - upper) * 2.0**_LOWER
    totals = [_UNKNOWN * int(count) for count in np.sum(~np.isfinite(leaves), axis=0)]
    for part, bits in ((upper, _LOWER), (lower, 0)):
        for at, row, value in _by_place(place, np.ldexp(part, shift)):
            totals[row] += value << bits + _STEP * at
    return tuple(totals)


def _by_place(place: Array, values: Array) -> list[tuple[int, int, int]]:
    """Whole numbers [leaves, rows] added up by place and row: (place, row, sum), all of them below 2^53."""
    rows = values.shape[1]
    sums = np.bincount((place * rows + np.arange(rows)).ravel(), values.ravel())
    return [(int(at) // rows, int(at) % rows, int(sums[at])) for at in sums.nonzero()[0]]


def value_of(total: int) -> float:
    """The sum as the nearest float64; NaN where it is unknown, inf where float64 has no number for it."""
    if total >= _UNKNOWN // 2:
        return nan
    try:
        return total / (1 << POINT)
    except OverflowError:
        return inf if total > 0 else -inf


class FixedSums(Answers[tuple[int, ...]]):
    """Answers are fixed sums, always as many."""

    def combine(self, left: tuple[int, ...], right: tuple[int, ...]) -> tuple[int, ...]:
        """Exact in any order."""
        return Integers().combine(left, right)

    def encode(self, answer: tuple[int, ...]) -> Any:
        """Each as "mp-e", which is m * 2^-e: an odd integer in hexadecimal digits, and a decimal exponent."""
        return [_written(total) for total in answer]

    def decode(self, data: Any) -> tuple[int, ...]:
        """What `encode` wrote."""
        return tuple(map(_read, data))


FIXED = Form(FixedSums().encode, FixedSums().decode)
"""Fixed sums as a field of Counts."""


def _written(total: int) -> str:
    zeros = (total & -total).bit_length() - 1 if total else POINT
    return f"{total >> zeros:x}p{zeros - POINT}"


def _read(text: str) -> int:
    digits, _, exponent = text.partition("p")
    return int(digits, 16) << int(exponent) + POINT
