"""The contract of runners: the local one passes it, and one that loses, reorders or swallows anything fails."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from agentmerge.engine.local import LocalRunner
from agentmerge.errors import MergeError
from agentmerge.survey.statistic import Survey
from agentmerge.testing import assert_runner_contract

pytestmark = pytest.mark.usefixtures("unsynced")


class Doubting(LocalRunner):
    """Gives the answers twice over."""

    def run(self, plan: Any, pass_: Any, survey: Survey, watch: Any) -> tuple[Survey, ...]:
        found = super().run(plan, pass_, survey, watch)
        for question in pass_.asked:
            found[0].add(question, "again", found[0].total(question))
        return found


class Calm(LocalRunner):
    """Swallows what went wrong."""

    def run(self, *arguments: Any) -> tuple[Survey, ...]:
        try:
            return super().run(*arguments)
        except (MergeError, RuntimeError):
            return (Survey(),)


class Forgetting(LocalRunner):
    """Keeps nothing of an interrupted pass."""

    def run(self, plan: Any, pass_: Any, survey: Survey, watch: Any) -> tuple[Survey, ...]:
        for output in pass_.outputs:
            output.sink.entries = []
        return super().run(plan, replace(pass_, keeper=None), survey, watch)


def test_the_local_runner_keeps_the_contract() -> None:
    assert_runner_contract(LocalRunner())


@pytest.mark.parametrize("runner", [Doubting(), Calm(), Forgetting()], ids=lambda runner: type(runner).__name__)
def test_a_runner_that_breaks_it_fails(runner: Any) -> None:
    with pytest.raises((AssertionError, KeyError, MergeError)):
        assert_runner_contract(runner)
