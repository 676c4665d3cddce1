"""The contract of kernels fails where a kernel differs from its definition by a bit, or writes too far."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Literal

import pytest

from agentmerge.methods.base import MergeMethod
from agentmerge.methods.registry import resolve_method
from agentmerge.methods.task_arithmetic import TaskArithmetic
from agentmerge.tensors import as_float32
from agentmerge.testing import assert_kernel_contract

if TYPE_CHECKING:
    from agentmerge.survey.statistic import Survey
    from agentmerge.tensors import Array, Stack


class OffByABit(TaskArithmetic):
    """Its definition is not what its kernel does."""

    name: Literal["off_by_a_bit"] = "off_by_a_bit"  # type: ignore[assignment]

    def merge(self, stack: Stack, survey: Survey) -> Array:
        merged = super().merge(stack, survey)
        merged[-1:] *= 2
        return merged


@pytest.mark.parametrize("method", ["ram", "ram_plus_auto", "ties", "linear", "fisher", "region", "dare", "calibrate"])
def test_built_in_kernels_keep_the_contract(method: str) -> None:
    settings: dict[str, Any] = {"region": {"agent": "code"}, "dare": {"then": "ties"}, "calibrate": {"then": "ram"}}
    assert_kernel_contract(resolve_method({"name": method, **settings.get(method, {})}))


def test_a_kernel_that_differs_fails() -> None:
    with pytest.raises(AssertionError, match="1 elements differ"):
        assert_kernel_contract(OffByABit())


class Plain(MergeMethod):
    """The base, by its definition alone."""

    name: Literal["plain"] = "plain"

    def merge(self, stack: Stack, survey: Survey) -> Array:
        return as_float32(stack.base)


def test_a_method_without_a_kernel_has_nothing_to_prove() -> None:
    with pytest.raises(AssertionError, match="no kernel for any"):
        assert_kernel_contract(Plain(), agents=(1,))
