"""Float sums that come out the same however the elements were divided. Knows no statistics' meaning.

A tensor's elements lie on leaves of LEAF elements, counted from its start. A leaf is added in one fixed order; two
finished neighbours of one level make a node of the next, as in a binary tree. So any division of the tensor at leaf
edges, folded in any order, ends with the same nodes, and the same bits.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np

from agentmerge.survey.statistic import Foldable
from agentmerge.tensors import LEAF, Array

if TYPE_CHECKING:
    from collections.abc import Mapping

LANES = 64
"""Running sums within a leaf: element i of a leaf is added to lane i % LANES, then the lanes are folded in halves."""

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


class SumsOverLeaves(Foldable[TreeSums]):
    """Answers are TreeSums; abstract."""

    def combine(self, left: TreeSums, right: TreeSums) -> TreeSums:
        """Exact in any order."""
        return left + right

    def encode(self, answer: TreeSums) -> dict[str, Any]:
        """Rows and nodes; JSON writes floats in their shortest exact form."""
        nodes = {n: [[*node, *value] for node, value in sorted(found.items())] for n, found in answer.nodes.items()}
        return {"rows": answer.rows, "nodes": nodes}

    def decode(self, data: Mapping[str, Any]) -> TreeSums:
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
    steps = padded.reshape(rows, leaves, LEAF // LANES, LANES)
    lanes = np.zeros((rows, leaves, LANES))
    for step in range(LEAF // LANES):
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
