"""Numbers for every tensor as one small value, which questions and makers hold. Knows no methods."""

from __future__ import annotations

from collections.abc import Mapping
from hashlib import sha256
from typing import TYPE_CHECKING, Generic, Self, TypeVar, final

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

N = TypeVar("N", int, float)

EVERYWHERE = ""
"""In place of a tensor's name: all merged tensors together."""


def _plain(number: N) -> N:
    """Python's own of a numpy scalar, which writes itself otherwise."""
    return number.item() if isinstance(number, np.generic) else number


@final
class ByTensor(Mapping[str, tuple[N, ...]], Generic[N]):
    """Tensor name, or EVERYWHERE, to numbers, usually one for each agent; sorted by name, and never changed.

    A checkpoint may have 100,000 tensors, and what holds such numbers is a key that is looked up for every block. So
    nothing but `__init__` goes over all of them: equality and hash are those of a digest.
    """

    __slots__ = ("_numbers", "digest")

    digest: str
    """128 bits of SHA-256 over names and numbers, which stands for them in a file."""

    def __init__(self, numbers: Mapping[str, Iterable[N]] | None = None) -> None:
        """Hold these numbers; none at all without them."""
        given: Mapping[str, Iterable[N]] = numbers or {}
        self._numbers: dict[str, tuple[N, ...]] = {name: tuple(map(_plain, given[name])) for name in sorted(given)}
        self.digest = sha256(repr(list(self._numbers.items())).encode()).hexdigest()[:32]

    def at(self, tensor: str, otherwise: tuple[N, ...] | None = None) -> tuple[N, ...]:
        """The numbers of a tensor, which are those of EVERYWHERE if there are such.

        Args:
            tensor: its name.
            otherwise: what is given where there are none.

        Raises:
            KeyError: there are none, and no `otherwise`.
        """
        found = self._numbers.get(EVERYWHERE) or self._numbers.get(tensor) or otherwise
        if found is None:
            raise KeyError(tensor)
        return found

    def __getitem__(self, name: str) -> tuple[N, ...]:
        return self._numbers[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._numbers)

    def __len__(self) -> int:
        return len(self._numbers)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, ByTensor) and self.digest == other.digest

    def __hash__(self) -> int:
        return hash(self.digest)

    def __repr__(self) -> str:
        return f"<{len(self)} tensors {self.digest}>"

    def __deepcopy__(self, memo: object) -> Self:
        return self

    def __reduce__(self) -> tuple[type[ByTensor[N]], tuple[dict[str, tuple[N, ...]]]]:
        return ByTensor, (self._numbers,)
