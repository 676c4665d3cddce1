"""How the answers of statistics add up, and how they travel as JSON: one value per kind of answer."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass, fields
from functools import reduce
from operator import add
from typing import TYPE_CHECKING, Any, ClassVar, Generic, NamedTuple, Self, TypeVar

import numpy as np

from agentmerge.tensors import Array

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence
    from dataclasses import Field

T = TypeVar("T")


class Answers(ABC, Generic[T]):
    """A kind of answer.

    `combine` must be exact, associative and commutative: then neither block size, worker count nor order of arrival
    can change an answer. Answers travel and rest as JSON, so `decode(encode(answer)) == answer`.
    """

    @abstractmethod
    def combine(self, left: T, right: T) -> T:
        """The answer for two disjoint sets of elements taken together."""

    @abstractmethod
    def encode(self, answer: T) -> Any:
        """The answer as plain JSON data."""

    @abstractmethod
    def decode(self, data: Any) -> T:
        """The answer that `encode` wrote."""


class Gathered(Answers[T]):
    """A kind of answer that holds something for every tensor: with each one that is added, it has more to go over.

    So a survey keeps them apart until the total is asked for, and then adds them all up at once.
    """

    @abstractmethod
    def gather(self, answers: Sequence[T]) -> T:
        """The answer for disjoint sets of elements taken together, one or more; in time that is proportional to all."""

    def combine(self, left: T, right: T) -> T:
        """The same of two."""
        return self.gather((left, right))


class Form(NamedTuple):
    """How one field of Counts becomes JSON, and back."""

    encode: Callable[[Any], Any]
    decode: Callable[[Any], Any]


_FORMS = {
    "int": Form(int, int),
    "Array": Form(lambda array: array.tolist(), lambda data: np.array(data, np.int64)),
    "tuple[int, ...]": Form(list, lambda data: tuple(map(int, data))),
}
"""By the field's declared type."""
HEXADECIMAL = Form(
    lambda array: [f"{int(value):016x}" for value in array],
    lambda data: np.array([int(text, 16) for text in data], np.uint64),
)
"""uint64 [n], 16 digits each."""


def ranged(size: int) -> Form:
    """Of int64 [..., size]: only the range of columns that hold anything is written."""
    return Form(_shortened, lambda data: _lengthened(data, size))


@dataclass(frozen=True, slots=True, eq=False)
class Counts:
    """Exact counts over a set of elements; abstract. Fields are ints, integer arrays or tuples of ints, and add up."""

    forms: ClassVar[Mapping[str, Form]] = {}
    """Of fields that are not written as their type tells; arrays are int64 unless it says otherwise."""

    def __eq__(self, other: object) -> bool:
        return type(other) is type(self) and all(
            np.array_equal(np.asarray(getattr(self, f.name)), np.asarray(getattr(other, f.name))) for f in fields(self)
        )

    __hash__ = None  # type: ignore[assignment]

    def __add__(self, other: Self) -> Self:
        return type(self)(*(_added(getattr(self, f.name), getattr(other, f.name)) for f in fields(self)))

    @classmethod
    def sum(cls, counts: Iterable[Self]) -> Self:
        """Of one or more."""
        return reduce(add, counts)

    def encode(self) -> dict[str, Any]:
        """By field name."""
        return {f.name: self._form(f).encode(getattr(self, f.name)) for f in fields(self)}

    @classmethod
    def decode(cls, data: Mapping[str, Any]) -> Self:
        """What `encode` wrote."""
        return cls(**{f.name: cls._form(f).decode(data[f.name]) for f in fields(cls)})

    @classmethod
    def _form(cls, of: Field[Any]) -> Form:
        return cls.forms.get(of.name) or _FORMS[str(of.type)]


C = TypeVar("C", bound=Counts)


class CountsOf(Answers[C]):
    """Answers are one kind of Counts."""

    def __init__(self, kind: type[C]) -> None:
        self._kind = kind

    def combine(self, left: C, right: C) -> C:
        """Field by field."""
        return left + right

    def encode(self, answer: C) -> Any:
        """By field name."""
        return answer.encode()

    def decode(self, data: Any) -> C:
        """What `encode` wrote."""
        return self._kind.decode(data)


class Integers(Answers[tuple[int, ...]]):
    """Answers are a tuple of exact integers of any size, always as many."""

    def combine(self, left: tuple[int, ...], right: tuple[int, ...]) -> tuple[int, ...]:
        """Sums."""
        return tuple(a + b for a, b in zip(left, right, strict=True))

    def encode(self, answer: tuple[int, ...]) -> Any:
        """A list."""
        return list(answer)

    def decode(self, data: Any) -> tuple[int, ...]:
        """What `encode` wrote."""
        return tuple(map(int, data))


class Integer(Answers[int]):
    """Answers are one exact integer."""

    def combine(self, left: int, right: int) -> int:
        """Sums."""
        return left + right

    def encode(self, answer: int) -> Any:
        """As it is."""
        return answer

    def decode(self, data: Any) -> int:
        """What `encode` wrote."""
        return int(data)


Histogram = tuple[Array, Array]
"""Sorted keys int64 [m] and their counts int64 [m], none of them 0."""


class Histograms(Answers[tuple[Histogram, ...]]):
    """Answers are a histogram per agent."""

    def combine(self, left: tuple[Histogram, ...], right: tuple[Histogram, ...]) -> tuple[Histogram, ...]:
        """Sums of counts."""
        return tuple(_joined(mine, other) for mine, other in zip(left, right, strict=True))

    def encode(self, answer: tuple[Histogram, ...]) -> Any:
        """Keys and counts."""
        return [[keys.tolist(), counts.tolist()] for keys, counts in answer]

    def decode(self, data: Any) -> tuple[Histogram, ...]:
        """What `encode` wrote."""
        return tuple((np.array(keys, np.int64), np.array(counts, np.int64)) for keys, counts in data)


def _added(left: Any, right: Any) -> Any:
    return Integers().combine(left, right) if isinstance(left, tuple) else left + right


def _joined(left: Histogram, right: Histogram) -> Histogram:
    keys, places = np.unique(np.concatenate([left[0], right[0]]), return_inverse=True)
    counts = np.zeros(keys.size, np.int64)
    np.add.at(counts, places, np.concatenate([left[1], right[1]]))
    return keys, counts


def _shortened(array: Array) -> dict[str, Any]:
    """The last axis from the first to the last column that holds anything."""
    used = np.flatnonzero(array.reshape(-1, array.shape[-1]).any(axis=0))
    first, stop = (int(used[0]), int(used[-1]) + 1) if used.size else (0, 0)
    counts = array[..., first:stop].tolist()
    return {"first": first, "counts": counts} | ({"rows": 0} if array.ndim == 2 and not len(array) else {})


def _lengthened(data: dict[str, Any], size: int) -> Array:
    counts, first = data["counts"], int(data["first"])
    if counts == [] and data.get("rows") == 0:  # a list without rows does not tell how long they would be
        return np.zeros((0, size), np.int64)
    found = np.array(counts, np.int64)
    array = np.zeros((*found.shape[:-1], size), np.int64)
    array[..., first : first + found.shape[-1]] = found
    return array
