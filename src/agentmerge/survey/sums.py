"""Float sums that come out the same however the elements were divided.

A tensor's elements lie on leaves of LEAF elements, counted from its start, and a leaf is added in one fixed order.
From there on there are two ways:

    TreeSums     two finished neighbours of one level make a node of the next, as in a binary tree; so any division of
                 the tensor at leaf edges, folded in any order, ends with the same nodes, and the same bits. Every
                 tensor keeps its nodes: methods may feed on these sums
    fixed sums   each leaf's sum is rounded once to a multiple of 2^-72, and those are added exactly as integers: a sum
                 over millions of leaves is one integer, which is enough for a report
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np

from agentmerge.survey.answers import Answers
from agentmerge.tensors import LEAF, RUNNING, Array

if TYPE_CHECKING:
    from collections.abc import Mapping

WHOLE, PART = 20, 52
"""In a fixed sum, a leaf's sum is high * 2^-20 + low * 2^-72; together within 2^-73 of it."""
_MOST = 2.0**61

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
        nodes = {name: dict(found) for name, found in self.nodes.items()}
        for name, found in other.nodes.items():
            mine = nodes.setdefault(name, {})
            for node, value in found.items():
                _insert(mine, node, value)
        return TreeSums(self.rows, nodes)

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


class TreeSumsOf(Answers[TreeSums]):
    """Answers are TreeSums."""

    def combine(self, left: TreeSums, right: TreeSums) -> TreeSums:
        """Exact in any order."""
        return left + right

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
    """The sums of the leaves, float64 [leaves, rows], that begin at element `start` of the tensor."""
    nodes: dict[Node, tuple[float, ...]] = {}
    for offset, leaf in enumerate(leaves.tolist()):
        _insert(nodes, (0, start // LEAF + offset), tuple(leaf))
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
    """float64 [leaves, rows] to the exact sum over the leaves, an integer of 2^-72 per row.

    What is not finite counts as 0 and what is too large as 2^41; Integrity tells of such inputs.
    """
    scaled = np.clip(np.nan_to_num(leaves, nan=0.0, posinf=_MOST, neginf=-_MOST) * 2.0**WHOLE, -_MOST, _MOST)
    high = np.floor(scaled)
    low = np.rint((scaled - high) * 2.0**PART)
    return tuple((h << PART) + x for h, x in zip(_exact(high), _exact(low), strict=True))


def _exact(values: Array) -> list[int]:
    """The sum of each column of whole numbers below 2^62, in halves of 31 bits so that int64 holds it."""
    whole = values.astype(np.int64)
    upper, lower = (whole >> 31).sum(axis=0).tolist(), (whole & (1 << 31) - 1).sum(axis=0).tolist()
    return [(u << 31) + x for u, x in zip(upper, lower, strict=True)]


def value_of(total: int) -> float:
    """The sum as a float64."""
    return float(total / 2 ** (WHOLE + PART))
