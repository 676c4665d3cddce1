"""What a pass has finished: which elements, and their combined answers. Knows neither files nor threads."""

from __future__ import annotations

from itertools import pairwise
from typing import TYPE_CHECKING, Any

from agentmerge.survey.statistic import Foldable, Survey

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

    from agentmerge.tensors import Block

Answers = dict[Foldable[Any], Any]


class Ledger:
    """The answers of one pass; every flush hands over an entry per job that a later run can read back."""

    def __init__(
        self,
        phase: str,
        questions: Iterable[Foldable[Any]],
        entries: Iterable[Mapping[str, Any]] = (),
        commit: Callable[[Iterator[dict[str, Any]]], None] | None = None,
    ) -> None:
        """Begin or go on.

        Args:
            phase: the pass's name; entries of other passes are passed over.
            questions: everything that may be answered in this pass.
            entries: what earlier runs committed.
            commit: called with new entries, made one by one, as those of many agents are large; returns when they and
                the data that they speak of are safe.
        """
        self.phase = phase
        self.survey = Survey()
        self._keys = {question: question.key for question in questions}
        self._questions = {key: question for question, key in self._keys.items()}
        self._commit = commit
        self._done: dict[str, list[tuple[int, int]]] = {}
        self._fresh: dict[str, tuple[list[tuple[int, int]], Answers]] = {}
        for entry in entries:
            if entry["phase"] == phase:
                self._restore(entry)

    def add(self, name: str, block: Block, answers: Answers) -> None:
        """A block of the job of this name is finished."""
        ranges, combined = self._fresh.setdefault(name, ([], {}))
        ranges.append((block.start, block.stop))
        for question, answer in answers.items():
            add = question.answers.combine
            combined[question] = add(combined[question], answer) if question in combined else answer

    def flush(self) -> None:
        """Commit what was added since the last time."""
        fresh, self._fresh = self._fresh, {}
        if self._commit is not None and fresh:
            self._commit(self._entry(name, *found) for name, found in fresh.items())
        for name, (ranges, answers) in fresh.items():
            self._keep(name, ranges, answers)

    def done(self, name: str) -> list[tuple[int, int]]:
        """The element ranges of a job that are finished, sorted."""
        return joined(self._done.get(name, ()))

    def _entry(self, name: str, ranges: list[tuple[int, int]], answers: Answers) -> dict[str, Any]:
        encoded = {self._keys[question]: question.answers.encode(answer) for question, answer in answers.items()}
        return {"phase": self.phase, "tensor": name, "ranges": joined(ranges), "answers": encoded}

    def _restore(self, entry: Mapping[str, Any]) -> None:
        found = [(self._questions[key], data) for key, data in entry["answers"].items()]
        answers = {question: question.answers.decode(data) for question, data in found}
        self._keep(entry["tensor"], [(start, stop) for start, stop in entry["ranges"]], answers)

    def _keep(self, name: str, ranges: list[tuple[int, int]], answers: Answers) -> None:
        self._done.setdefault(name, []).extend(ranges)
        for question, answer in answers.items():
            self.survey.add(question, name, answer)


def joined(ranges: Iterable[tuple[int, int]]) -> list[tuple[int, int]]:
    """Sorted ranges, adjacent ones made one."""
    result: list[tuple[int, int]] = []
    for start, stop in sorted(ranges):
        if result and result[-1][1] == start:
            result[-1] = (result[-1][0], stop)
        else:
            result.append((start, stop))
    return result


def gaps(done: Sequence[Sequence[tuple[int, int]]], elements: int) -> Iterator[tuple[int, int, tuple[int, ...]]]:
    """Cut a tensor where any of several ledgers begins or ends.

    Args:
        done: per ledger, the finished ranges.
        elements: of the tensor.

    Yields:
        start, stop, and which ledgers have not finished these elements; ranges that all have finished are left out.
    """
    edges = sorted({0, elements, *(edge for ranges in done for pair in ranges for edge in pair)})
    for start, stop in pairwise(edges):
        lacking = tuple(k for k, ranges in enumerate(done) if not any(a <= start < b for a, b in ranges))
        if lacking:
            yield start, stop, lacking
