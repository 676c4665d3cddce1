"""The contract of methods refuses a method that breaks it; every built-in one passes it in tests/methods."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Literal

import numpy as np
import pytest

from agentmerge.methods.base import MergeMethod, added
from agentmerge.survey.overlap import Overlap
from agentmerge.tensors import as_float32
from agentmerge.testing import assert_contract, assert_pure, survey_of

if TYPE_CHECKING:
    from agentmerge.survey.statistic import Survey
    from agentmerge.tensors import Array, Stack

pytestmark = pytest.mark.usefixtures("unsynced")


class Mean(MergeMethod):
    """Keeps the contract."""

    name: Literal["mean_for_a_test"] = "mean_for_a_test"

    def merge(self, stack: Stack, survey: Survey) -> Array:
        return added(stack.base, stack.task_vectors().sum(axis=0) / np.float32(len(stack.agents)))


class PlusZero(Mean):
    """Turns the base's -0.0 into 0.0."""

    name: Literal["plus_zero"] = "plus_zero"  # type: ignore[assignment]

    def merge(self, stack: Stack, survey: Survey) -> Array:
        merged: Array = as_float32(stack.base) + stack.task_vectors().sum(axis=0)
        return merged


class PlusZeroWhereChangesCancel(Mean):
    """Keeps -0.0 where nobody changed it, and nowhere else."""

    name: Literal["plus_zero_where_changes_cancel"] = "plus_zero_where_changes_cancel"  # type: ignore[assignment]

    def merge(self, stack: Stack, survey: Survey) -> Array:
        base, tau = as_float32(stack.base), stack.task_vectors()
        return np.where((tau == 0).all(axis=0), base, base + tau.sum(axis=0))


class OfTheBlock(Mean):
    """Depends on how the tensor was cut into blocks."""

    name: Literal["of_the_block"] = "of_the_block"  # type: ignore[assignment]

    def merge(self, stack: Stack, survey: Survey) -> Array:
        return added(stack.base, stack.task_vectors()[0] * np.float32(1 if stack.block.start == 0 else 2))


class FirstInTheRecipe(Mean):
    """Depends on where agents stand, which their names decide: it is not symmetric, but the same in every order."""

    name: Literal["first"] = "first"  # type: ignore[assignment]

    def merge(self, stack: Stack, survey: Survey) -> Array:
        return added(stack.base, stack.task_vectors()[0])


class Careless(Mean):
    """Writes into its input."""

    name: Literal["careless"] = "careless"  # type: ignore[assignment]

    def merge(self, stack: Stack, survey: Survey) -> Array:
        for agent in stack.agents:
            agent.flags.writeable = True
            agent[:1] = 1
        return super().merge(stack, survey)


class Wide(Mean):
    """Returns float64."""

    name: Literal["wide"] = "wide"  # type: ignore[assignment]

    def merge(self, stack: Stack, survey: Survey) -> Array:
        return super().merge(stack, survey).astype(np.float64)


class Curious(Mean):
    """Never stops asking."""

    name: Literal["curious"] = "curious"  # type: ignore[assignment]

    def ask(self, survey: Survey) -> tuple[Any, ...]:
        return (Overlap(),)


@pytest.mark.parametrize("method", [Mean(), FirstInTheRecipe()], ids=repr)
def test_a_sound_method_passes(method: MergeMethod) -> None:
    assert_contract(method)


def test_a_method_that_turns_minus_zero_into_zero_fails() -> None:
    with pytest.raises(AssertionError, match=r"agents equal to the base.*0\.0, -0\.0"):
        assert_contract(PlusZero())


def test_a_method_that_turns_minus_zero_into_zero_where_changes_cancel_fails() -> None:
    with pytest.raises(AssertionError, match=r"an update of 0 at weights .* 0\.0, -0\.0"):
        assert_contract(PlusZeroWhereChangesCancel())


def test_a_method_that_depends_on_the_block_fails() -> None:
    with pytest.raises(AssertionError, match="block_size 4096, workers 1"):
        assert_contract(OfTheBlock())


def test_a_method_that_writes_into_its_input_fails() -> None:
    with pytest.raises((AssertionError, ValueError), match=r"changed its inputs|cannot set WRITEABLE|merged twice"):
        assert_pure(Careless())


def test_a_method_that_returns_another_dtype_fails() -> None:
    with pytest.raises(AssertionError, match="merge gave float64"):
        assert_pure(Wide())


def test_a_method_that_never_stops_asking_fails() -> None:
    with pytest.raises(AssertionError, match="still asks"):
        survey_of(Curious(), [])
