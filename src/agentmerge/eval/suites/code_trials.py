"""From a model's answers to trials, and from their verdicts to what one task is worth."""

from __future__ import annotations

from typing import TYPE_CHECKING

from agentmerge.eval.cure.tables import cells
from agentmerge.eval.cure.tasks import CodeTask
from agentmerge.eval.cure.texts import case_of, program_of
from agentmerge.eval.execution.trial import Trial

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from agentmerge.eval.execution.trial import Verdict
    from agentmerge.eval.request import JSON
    from agentmerge.eval.suite import Cell, Item
    from agentmerge.eval.suites.code_settings import CodeSettings


class Asked:
    """One item, what was answered, and the trials that come of it."""

    def __init__(self, settings: CodeSettings, item: Item, output: JSON) -> None:
        self._settings, self._task = settings, CodeTask.load(item.data, item.id)
        self._programs = [program_of(text) for text in output["programs"]]
        self._cases = [case for case in map(case_of, output["cases"]) if case is not None]

    @property
    def _tests(self) -> tuple[tuple[str, str], ...]:
        return self._task.tests[: self._settings.max_tests]

    @property
    def _counts(self) -> bool:
        """Whether the task counts for something, whatever its programs do."""
        skipped = self._settings.skip == "cure" and self._settings.cases > 0 and not self._cases
        return bool(self._tests) and not skipped

    def trials(self) -> Iterator[Trial]:
        """Every program on every test."""
        for program in self._programs if self._counts else ():
            if program is not None:
                for test in (*self._tests, *self._cases):
                    yield self._trial(program, test)

    def cells(self, verdicts: Mapping[str, Verdict]) -> dict[str, Cell]:
        """What the verdicts are worth; an answer without a program passes nothing."""
        if not self._counts:
            return {}
        tests, cases = (
            [[self._passes(program, test, verdicts) for test in tests] for program in self._programs]
            for tests in (self._tests, self._cases)
        )
        settings = self._settings
        return cells(tests, cases, settings.best_of, asked_for_cases=settings.cases > 0, skip=settings.skip)

    def _passes(self, program: str | None, test: tuple[str, str], verdicts: Mapping[str, Verdict]) -> bool:
        if program is None:
            return False
        return verdicts[self._trial(program, test).key(self._settings.limits)] == "passed"

    def _trial(self, program: str, test: tuple[str, str]) -> Trial:
        settings = self._settings
        seconds = self._task.seconds * settings.time_factor
        return Trial(program, *test, seconds, settings.executor, settings.comparator)
