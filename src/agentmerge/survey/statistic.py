"""A question folded over every stack, and the survey that holds the answers. Knows no files and no methods."""

from __future__ import annotations

import json
from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any, ClassVar, Generic, Protocol, TypeVar, final

from agentmerge.survey.answers import Gathered
from agentmerge.survey.by_tensor import ByTensor
from agentmerge.tensors import LEAF

if TYPE_CHECKING:
    from collections.abc import Hashable, Iterable, Mapping, Sequence

    from agentmerge.kernels import Backend
    from agentmerge.survey.answers import Answers
    from agentmerge.tensors import Array, Cast, Reach, Stack, TensorSpec

T = TypeVar("T")


class Foldable(ABC, Generic[T]):
    """A question whose answers add up; subclasses are frozen dataclasses, so that a question is its own key."""

    per_tensor: ClassVar[bool] = False
    """Whether the survey keeps an answer per tensor beside the total."""

    @property
    @abstractmethod
    def answers(self) -> Answers[T]:
        """How the answers add up and travel; a class attribute is enough."""

    @property
    def key(self) -> str:
        """The question's name in a file: its class and its settings; from outside of agentmerge, its module too."""
        kind = type(self)
        name = kind.__name__
        if kind.__module__.partition(".")[0] != __name__.partition(".")[0]:
            name = f"{kind.__module__}.{kind.__qualname__}"
        return f"{name} {json.dumps(asdict(self), sort_keys=True, default=_digest)}"  # type: ignore[call-overload]


def _digest(setting: Any) -> str:
    if isinstance(setting, ByTensor):
        return setting.digest
    raise TypeError(f"{type(setting).__name__} is no setting of a question")


class Statistic(Foldable[T]):
    """A question about the inputs, answered stack by stack before or while they are merged."""

    def reach(self, tensor: TensorSpec, agents: int) -> Reach:
        """What it must see of this tensor at a time, as `Work.reach` says."""
        return "element"

    def share(self, tensor: TensorSpec, agents: int) -> float:
        """What observing this tensor takes of the machine, as `Work.share` says; 0 for what every thread may do."""
        return 0.0

    def flop(self, tensor: TensorSpec, agents: int) -> float:
        """What observing this tensor computes at length, as `Work.flop` says."""
        return 0.0

    @abstractmethod
    def observe(self, stack: Stack) -> T:
        """The answer for one stack: the definition."""

    def kernel(self, stack: Stack, kernels: Backend) -> T | None:
        """The same, bit for bit, by a compiled loop; None where there is none for it.

        Args:
            stack: one that `kernels` takes.
            kernels: what `kernels.choose` gave for it.
        """
        return None

    def kernel_with(self, asked: Sequence[Statistic[Any]], stack: Stack, kernels: Backend) -> dict[Foldable[Any], Any]:
        """What one pass of compiled loops answers of this question and of what else is asked; perhaps nothing.

        Args:
            asked: the questions that have no answer yet.
            stack: as for `kernel`.
            kernels: as for `kernel`.
        """
        answer = self.kernel(stack, kernels)
        return {} if answer is None else {self: answer}

    def parts(self, stack: Stack, elements: int = 32 * LEAF) -> Iterable[Stack]:
        """The stack in parts that may be observed one by one, by default so many elements: they fit the cache."""
        return stack.pieces(elements)


class AfterStatistic(Foldable[T]):
    """A question about what became of the inputs, answered while they are merged."""

    @abstractmethod
    def observe(self, stack: Stack, merged: Array, stored: Array, cast: Cast) -> T:
        """The answer for one stack, its float32 result [n] and what was stored of it [n]: the definition."""

    def kernel(self, stack: Stack, stored: Array, kernels: Backend) -> T | None:
        """The same, bit for bit, by a compiled loop from what was stored alone; None where there is none for it.

        Args:
            stack: what was merged.
            stored: [n], contiguous.
            kernels: what `kernels.choose` gave for the stack and the dtype of `stored`.
        """
        return None


Lens = Callable[[Foldable[Any]], Foldable[Any]]
"""The question that stands behind another."""


class Kept(Protocol):
    """Results of one pass that a later one takes instead of computing them again; they are only ever quicker."""

    def keep(self, name: str, start: int, values: Array) -> None:
        """Keep float32 elements of a name that begin at `start`; what has no room is not kept."""

    def take(self, name: str, start: int, elements: int) -> Array | None:
        """The same elements, float32 [elements]; None where they were not kept."""


@dataclass(frozen=True)
class KeptUnder:
    """Another Kept, whose names all begin with the same."""

    inner: Kept
    under: str

    def keep(self, name: str, start: int, values: Array) -> None:
        """See Kept."""
        self.inner.keep(self.under + name, start, values)

    def take(self, name: str, start: int, elements: int) -> Array | None:
        """See Kept."""
        return self.inner.take(self.under + name, start, elements)


@final
class Survey:
    """All the answers of a fold: a total per statistic, and per tensor where the statistic keeps them."""

    def __init__(self, kept: Kept | None = None) -> None:
        """Without any answers.

        Args:
            kept: what methods hand on from pass to pass.
        """
        self.kept = kept
        self._totals: dict[str, list[Any]] = {}  # answers that are not added up yet; of most kinds it is one
        self._tensors: dict[str, dict[str, Any]] = {}
        self._derived: dict[Hashable, Any] = {}
        self._lens: Lens = lambda question: question

    def seen_through(self, lens: Lens, under: str = "") -> Survey:
        """The same answers for somebody whose questions have others behind them; what is derived is kept apart.

        Args:
            lens: of each question asked there, the one that is answered here.
            under: what the names of kept results begin with, where they are of other stacks.
        """
        view = Survey(KeptUnder(self.kept, under) if self.kept is not None and under else self.kept)
        view._totals, view._tensors = self._totals, self._tensors
        view._lens = lambda question: self._lens(lens(question))
        return view

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
        key, combine = self._key(statistic), statistic.answers.combine
        found = self._totals.setdefault(key, [])
        if found and not isinstance(statistic.answers, Gathered):
            found[0] = combine(found[0], answer)
        else:
            found.append(answer)
        if statistic.per_tensor:
            kept = self._tensors.setdefault(key, {})
            kept[tensor] = combine(kept[tensor], answer) if tensor in kept else answer

    def knows(self, statistic: Foldable[Any]) -> bool:
        """Whether the statistic has been folded."""
        return self._key(statistic) in self._totals

    def total(self, statistic: Foldable[T]) -> T:
        """The answer over all merged elements of the checkpoint; KeyError when it was not folded."""
        key, kind = self._key(statistic), statistic.answers
        found = self._totals[key]
        if isinstance(kind, Gathered) and len(found) > 1:  # several threads may do so, and find the same
            found = self._totals[key] = [kind.gather(found)]
        answer: T = found[0]
        return answer

    def at(self, tensor: str, statistic: Foldable[T]) -> T:
        """The answer over one tensor; KeyError when it was not folded or is not kept per tensor."""
        answer: T = self._tensors[self._key(statistic)][tensor]
        return answer

    def every(self, statistic: Foldable[T]) -> Mapping[str, T]:
        """The answers per tensor, by tensor name; KeyError when there are none."""
        return self._tensors[self._key(statistic)]

    def update(self, other: Survey) -> None:
        """Take over every answer of another survey."""
        self._totals.update((key, list(found)) for key, found in other._totals.items())
        self._tensors.update(other._tensors)

    def joined(self, other: Survey) -> Survey:
        """A new survey with the answers of both."""
        both = Survey()
        both.update(self)
        both.update(other)
        return both

    def encode(self, statistics: Iterable[Foldable[Any]]) -> dict[str, Any]:
        """The answers to these questions, by key, as JSON data."""
        return {self._key(s): self._encoded(s, s.answers.encode) for s in statistics}

    def adopt(self, statistic: Foldable[Any], data: Mapping[str, Any]) -> None:
        """Take over what `encode` wrote for one question."""
        key, decode = self._key(statistic), statistic.answers.decode
        self._totals[key] = [decode(data["total"])]
        self._tensors[key] = {name: decode(answer) for name, answer in data["tensors"].items()}

    def _encoded(self, statistic: Foldable[Any], encode: Callable[[Any], Any]) -> dict[str, Any]:
        tensors = self._tensors.get(self._key(statistic), {})
        return {"total": encode(self.total(statistic)), "tensors": {n: encode(a) for n, a in tensors.items()}}

    def _key(self, statistic: Foldable[Any]) -> str:
        return self._lens(statistic).key
