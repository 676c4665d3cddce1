"""The contract of runners: the local one passes it, and one that loses, reorders or swallows anything fails."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from agentmerge.engine.local import LocalRunner
from agentmerge.errors import MergeError
from agentmerge.survey.statistic import Survey
from agentmerge.testing import assert_runner_contract

if TYPE_CHECKING:
    from collections.abc import Sequence

pytestmark = pytest.mark.usefixtures("unsynced")


class Doubting(LocalRunner):
    """Gives the answers twice over."""

    def fold(self, *arguments: Any) -> Survey:
        found = super().fold(*arguments)
        statistics: Sequence[Any] = arguments[1]
        for statistic in statistics:
            found.add(statistic, "again", found.total(statistic))
        return found


class Calm(LocalRunner):
    """Swallows what went wrong."""

    def map(self, *arguments: Any) -> tuple[Survey, ...]:
        try:
            return super().map(*arguments)
        except MergeError:
            return (Survey(),)
        except RuntimeError:
            return (Survey(),)


class Silencing(LocalRunner):
    """Keeps nothing of an interrupted pass."""

    def map(self, targets: Any, survey: Survey, statistics: Any, watch: Any) -> tuple[Survey, ...]:
        for target in targets:
            object.__setattr__(target.writer, "entries", [])
        return super().map(targets, survey, statistics, watch)

    def fold(self, plan: Any, statistics: Any, phase: str, writer: Any, watch: Any) -> Survey:
        return super().fold(plan, statistics, phase, None, watch)


def test_the_local_runner_keeps_the_contract() -> None:
    assert_runner_contract(LocalRunner())


@pytest.mark.parametrize("runner", [Doubting(), Calm(), Silencing()], ids=lambda runner: type(runner).__name__)
def test_a_runner_that_breaks_it_fails(runner: Any) -> None:
    with pytest.raises((AssertionError, KeyError, MergeError)):
        assert_runner_contract(runner)
