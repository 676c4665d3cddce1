"""The norm of what a method of whole matrices makes of each of them."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from math import sqrt
from typing import TYPE_CHECKING, Any, ClassVar, Self

import numpy as np

from agentmerge.methods.layers import available, matrix_by_matrix
from agentmerge.methods.spectral import place_of
from agentmerge.methods.vectors import Vectors
from agentmerge.survey.answers import Answers, Gathered
from agentmerge.survey.statistic import Statistic

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from agentmerge.methods.arrays import Arrays
    from agentmerge.methods.layers import WholeMatrices
    from agentmerge.tensors import Array, Reach, Stack, TensorSpec

Norms = dict[str, float]
"""By the name of the matrix; of experts, [its number] is part of it."""


class NormsOf(Gathered[Norms]):
    """Answers are norms of different matrices."""

    def gather(self, answers: Sequence[Norms]) -> Norms:
        """All of them, in the order of their names."""
        return dict(sorted((place, norm) for norms in answers for place, norm in norms.items()))

    def encode(self, answer: Norms) -> Any:
        """JSON writes floats in their shortest exact form."""
        return answer

    def decode(self, data: Any) -> Norms:
        """What `encode` wrote."""
        return {str(place): float(norm) for place, norm in data.items()}


@dataclass(frozen=True)
class MatrixNorms(Statistic[Norms]):
    """norm M of every matrix, M as `update` has it; 0 where no agent changed it. Merges all of them."""

    settings: str
    """The method as JSON: what tells this statistic from others."""
    method: Any = field(compare=False, repr=False)
    answers: ClassVar[Answers[Norms]] = NormsOf()

    @classmethod
    def of(cls, method: WholeMatrices) -> Self:
        """Of what this method makes of matrices."""
        return cls(json.dumps(method.model_dump(mode="json"), sort_keys=True), method)

    @property
    def key(self) -> str:
        """By the method's settings."""
        return f"MatrixNorms {self.settings}"

    def share(self, tensor: TensorSpec, agents: int) -> float:
        """As of the method whose merge it is."""
        return float(self.method.work(tensor, agents).share)

    def reach(self, tensor: TensorSpec, agents: int) -> Reach:
        """As of the method whose merge it is."""
        reach: Reach = self.method.work(tensor, agents).reach
        return reach

    def flop(self, tensor: TensorSpec, agents: int) -> float:
        """As of the method whose merge it is."""
        return float(self.method.work(tensor, agents).flop)

    def observe(self, stack: Stack) -> Norms:
        """Merge the matrices of one stack, and measure; none where a rule has another setting go without Grams."""
        tensor, found = stack.block.tensor, Norms()
        needs = self.method.work(tensor, len(stack.agents)).gram
        if not self.method.is_linear(tensor) or (needs and not stack.grams):
            return found

        turned = self.method.is_turned(tensor)

        def measured(piece: Stack, arrays: Arrays) -> Array:
            update = self.method.update(Vectors(piece, arrays, turned=turned), arrays)
            found[place_of(piece)] = 0.0 if update is None else sqrt(float((update * update).sum()))
            return np.zeros(piece.base.size, np.float32)

        matrix_by_matrix(self.method, stack, available(self.method.device), measured, turned=turned)
        return found

    def parts(self, stack: Stack, elements: int = 0) -> Iterable[Stack]:
        """All of it at once."""
        return (stack,)
