"""A question folded over every stack, and the survey that holds the answers. Knows no files and no methods."""

from __future__ import annotations

import json
from abc import ABC, abstractmethod
from dataclasses import asdict
from typing import TYPE_CHECKING, Any, ClassVar, Generic, TypeVar

if TYPE_CHECKING:
    from collections.abc import Callable, Hashable, Iterable, Mapping

    from agentmerge.tensors import Array, Cast, Stack, TensorSpec

T = TypeVar("T")


class Foldable(ABC, Generic[T]):
    """How answers add up; subclasses are frozen dataclasses, so that a question is its own key.

    `combine` must be exact, associative and commutative: then neither block size, worker count nor order of arrival
    can change an answer. Answers travel and rest as JSON, so `decode(encode(answer)) == answer`.
    """

    per_tensor: ClassVar[bool] = False
    """Whether the survey keeps an answer per tensor beside the total."""

    @abstractmethod
    def combine(self, left: T, right: T) -> T:
        """The answer for two disjoint sets of elements taken together."""

    @abstractmethod
    def encode(self, answer: T) -> Any:
        """The answer as plain JSON data."""

    @abstractmethod
    def decode(self, data: Any) -> T:
        """The answer that `encode` wrote."""

    @property
    def key(self) -> str:
        """The statistic's name in a file: its class and its settings."""
        return f"{type(self).__name__} {json.dumps(asdict(self), sort_keys=True)}"  # type: ignore[call-overload]


class Statistic(Foldable[T]):
    """A question about the inputs, answered stack by stack before or while they are merged."""

    def alone(self, tensor: TensorSpec, agents: int) -> bool:
        """Whether observing this tensor needs all processors: the engine then does one such tensor at a time."""
        return False

    @abstractmethod
    def observe(self, stack: Stack) -> T:
        """The answer for one stack."""

    def fused(self, stack: Stack) -> T | None:
        """The same, bit for bit, by a compiled kernel; None where none fits this stack."""
        return None


class AfterStatistic(Foldable[T]):
    """A question about what became of the inputs, answered while they are merged."""

    @abstractmethod
    def observe(self, stack: Stack, merged: Array, stored: Array, cast: Cast) -> T:
        """The answer for one stack, its float32 result [n] and what was stored of it [n]."""

    def fused(self, stack: Stack, stored: Array) -> T | None:
        """The same, bit for bit, by a compiled kernel from what was stored alone; None where none fits."""
        return None


class Survey:
    """All the answers of a fold: a total per statistic, and per tensor where the statistic keeps them."""

    def __init__(self) -> None:
        self._totals: dict[str, Any] = {}
        self._tensors: dict[str, dict[str, Any]] = {}
        self._derived: dict[Hashable, Any] = {}

    def derived(self, key: Hashable, make: Callable[[], T]) -> T:
        """What follows from a finished survey, made once: limits, scales, coefficients.

        Args:
            key: tells it from everything else that is derived.
            make: called the first time, perhaps by several threads at once; they must make the same.
        """
        if key not in self._derived:
            self._derived[key] = make()
        found: T = self._derived[key]
        return found

    def add(self, statistic: Foldable[T], tensor: str, answer: T) -> None:
        """Fold one more answer in."""
        key = statistic.key
        self._totals[key] = statistic.combine(self._totals[key], answer) if key in self._totals else answer
        if statistic.per_tensor:
            kept = self._tensors.setdefault(key, {})
            kept[tensor] = statistic.combine(kept[tensor], answer) if tensor in kept else answer

    def knows(self, statistic: Foldable[Any]) -> bool:
        """Whether the statistic has been folded."""
        return statistic.key in self._totals

    def total(self, statistic: Foldable[T]) -> T:
        """The answer over all merged elements of the checkpoint; KeyError when it was not folded."""
        answer: T = self._totals[statistic.key]
        return answer

    def at(self, tensor: str, statistic: Foldable[T]) -> T:
        """The answer over one tensor; KeyError when it was not folded or is not kept per tensor."""
        answer: T = self._tensors[statistic.key][tensor]
        return answer

    def every(self, statistic: Foldable[T]) -> Mapping[str, T]:
        """The answers per tensor, by tensor name; KeyError when there are none."""
        return self._tensors[statistic.key]

    def update(self, other: Survey) -> None:
        """Take over every answer of another survey."""
        self._totals.update(other._totals)
        self._tensors.update(other._tensors)

    def joined(self, other: Survey) -> Survey:
        """A new survey with the answers of both."""
        both = Survey()
        both.update(self)
        both.update(other)
        return both

    def encode(self, statistics: Iterable[Foldable[Any]]) -> dict[str, Any]:
        """The answers to these questions, by key, as JSON data."""
        return {
            s.key: {
                "total": s.encode(self._totals[s.key]),
                "tensors": {name: s.encode(answer) for name, answer in self._tensors.get(s.key, {}).items()},
            }
            for s in statistics
        }

    def adopt(self, statistic: Foldable[Any], data: Mapping[str, Any]) -> None:
        """Take over what `encode` wrote for one question."""
        self._totals[statistic.key] = statistic.decode(data["total"])
        self._tensors[statistic.key] = {name: statistic.decode(a) for name, a in data["tensors"].items()}
