"""The contract of statistics: every built-in one passes it, and one that breaks a law of it fails."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np
import pytest

from agentmerge.methods.dare import Drop
from agentmerge.methods.fisher import ImportanceNorm
from agentmerge.methods.making import Made
from agentmerge.methods.ram_energies import Energies
from agentmerge.methods.sce import Variance
from agentmerge.methods.trim import Trim
from agentmerge.survey.by_tensor import EVERYWHERE, ByTensor
from agentmerge.survey.full.question import Profile
from agentmerge.survey.integrity import Integrity
from agentmerge.survey.magnitude import MagnitudeHigh, MagnitudeLow
from agentmerge.survey.overlap import Overlap
from agentmerge.survey.products import Powers, Products
from agentmerge.survey.retention import RegionRetention, StoredRetention
from agentmerge.survey.rounding import Rounding
from agentmerge.survey.statistic import Statistic
from agentmerge.tensors import as_float32
from agentmerge.testing import assert_statistic_contract

if TYPE_CHECKING:
    from agentmerge.tensors import Stack

EVERY = (1, 3, 9, 64)
BUILT_IN: tuple[tuple[Any, tuple[int, ...]], ...] = (
    (Overlap(), EVERY),
    (Overlap(1e-3), EVERY),
    (Integrity(), EVERY),
    (MagnitudeHigh(), EVERY),
    (MagnitudeLow(ByTensor({EVERYWHERE: (15000, 15100, -1)})), (3,)),
    (Rounding(), EVERY),
    (StoredRetention(), EVERY),
    (RegionRetention(), (1, 3, 9)),
    (Profile(), (1, 3)),
    (Profile(sample=2), (1, 3)),
    (Energies(1e-5, "mean", 1.0), EVERY),
    (Energies(1e-5, "importance", 1.0), (1, 3, 9)),
    (ImportanceNorm(), (1, 3, 9)),
    (Made(Overlap(), Drop(0.5, 3)), (3,)),
    (Products(), (1, 3, 9)),
    (Powers(1), (3,)),
    (Made(Powers(2), Trim(ByTensor({EVERYWHERE: (0.001, 0.0, 1.0)}), ByTensor({EVERYWHERE: (1.0, 0.01, 0.5)}))), (3,)),
    (Made(MagnitudeHigh(by_tensor=True), Variance()), (3,)),
)


class Adding:
    """Answers are sums of integers."""

    def combine(self, left: Any, right: Any) -> Any:
        return left + right

    def encode(self, answer: Any) -> Any:
        return answer

    def decode(self, data: Any) -> Any:
        return data


class Latest(Adding):
    """Associative, but not commutative."""

    def combine(self, left: Any, right: Any) -> Any:
        return right or left


class Growing(Adding):
    """Its combine changes an answer that it was given."""

    def combine(self, left: Any, right: Any) -> Any:
        left["count"] += right["count"]
        return left


class Losing(Adding):
    """Loses something on the way through JSON."""

    def encode(self, answer: int) -> Any:
        return answer // 2 * 2 if answer > 2 else answer

    def decode(self, data: Any) -> int:
        return int(data) + 1


@dataclass(frozen=True)
class Changes(Statistic[int]):
    """How many elements any agent changed; keeps the contract."""

    answers: ClassVar[Any] = Adding()

    def observe(self, stack: Stack) -> int:
        return int((stack.task_vectors() != 0).sum())


@dataclass(frozen=True)
class FloatSum(Changes):
    """Adds floats in the order in which they come."""

    def observe(self, stack: Stack) -> Any:
        return float(np.nan_to_num(as_float32(stack.base)).sum(dtype=np.float32))


@dataclass(frozen=True)
class LastSeen(Changes):
    """Keeps the last place that it saw."""

    answers: ClassVar[Any] = Latest()

    def observe(self, stack: Stack) -> Any:
        return [stack.block.stop] if stack.base.size else []


@dataclass(frozen=True)
class Counting(Changes):
    """Counts in place."""

    answers: ClassVar[Any] = Growing()

    def observe(self, stack: Stack) -> Any:
        return {"count": 1 if stack.base.size else 0}


@dataclass(frozen=True)
class Forgetful(Changes):
    """Its answers do not survive JSON."""

    answers: ClassVar[Any] = Losing()


@dataclass(frozen=True)
class WrongKernel(Changes):
    """Its kernel counts one too many."""

    def kernel(self, stack: Stack, kernels: Any) -> int | None:
        return self.observe(stack) + 1


class Nameless(Changes):
    """Can't be a key, as what can change can't."""

    __hash__ = None  # type: ignore[assignment]


@pytest.mark.parametrize(("question", "agents"), [*BUILT_IN, (Changes(), EVERY)], ids=str)
def test_every_statistic_keeps_the_contract(question: Any, agents: tuple[int, ...]) -> None:
    assert_statistic_contract(question, agents=agents)


@pytest.mark.parametrize(
    ("question", "complaint"),
    [
        (FloatSum(), "parts of 2048 elements combined"),
        (LastSeen(), "parts of 2048 elements combined"),
        (Counting(), "combined|changed an answer"),
        (Forgetful(), "read back from JSON"),
        (WrongKernel(), "by its kernel"),
    ],
    ids=str,
)
def test_a_statistic_that_breaks_a_law_fails(question: Any, complaint: str) -> None:
    with pytest.raises(AssertionError, match=complaint):
        assert_statistic_contract(question, agents=(3,))


def test_a_statistic_that_can_not_be_a_key_fails() -> None:
    with pytest.raises(AssertionError, match="a statistic is a frozen dataclass"):
        assert_statistic_contract(Nameless())
