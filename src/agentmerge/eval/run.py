"""The runner: all conversations of a suite step together, every answer is stored at once, scoring needs no model."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Protocol

from agentmerge._version import __version__
from agentmerge.errors import EvalError
from agentmerge.eval.answers import Answers
from agentmerge.eval.conversations import Round, converse_all
from agentmerge.eval.empty import empty_of
from agentmerge.eval.generators.replay import unanswered
from agentmerge.eval.lines import write_lines
from agentmerge.eval.model import claim, claimed, model_facts
from agentmerge.eval.record import RECORD, ColumnFacts, DataFacts, EvalRecord, SuiteFacts, Tokens, locked
from agentmerge.eval.results import save_scores
from agentmerge.eval.statistics import summary
from agentmerge.eval.suite import limited

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path

    from agentmerge.eval.generators.generator import Generator
    from agentmerge.eval.record import ModelFacts
    from agentmerge.eval.request import JSON, Request, Response
    from agentmerge.eval.suite import Cell, Item, Suite

OUTPUTS = "outputs.jsonl"


class Listener(Protocol):
    """Is told how far an evaluation is; every call comes from the thread that started it."""

    def asking(self, suite: str, turn: int, stored: int, open_: int) -> None:
        """A turn begins: so many of its requests are answered already, so many are handed to the generator."""

    def answered(self, response: Response) -> None:
        """One more is answered."""

    def scoring(self, suite: str, items: int) -> None:
        """All are answered; the outputs are scored now."""


class Deaf:
    """A listener that does nothing."""

    def asking(self, suite: str, turn: int, stored: int, open_: int) -> None:
        """Nothing to do."""

    def answered(self, response: Response) -> None:
        """Nothing to do."""

    def scoring(self, suite: str, items: int) -> None:
        """Nothing to do."""


@dataclass(frozen=True)
class Job:
    """One suite of an evaluation."""

    suite: Suite
    preset: str = "paper"
    """For the record; the suite has its settings."""
    limit: int | None = None
    """Most items of a group; None takes all."""


def evaluate(
    model: str,
    jobs: Sequence[Job],
    generator: Generator | None,
    out: Path,
    *,
    listener: Listener | None = None,
) -> EvalRecord:
    """Ask a model everything that OUT has no answer to yet, score it all and write the record.

    Args:
        model: its folder, or the name that a server knows it by.
        jobs: the suites; others that OUT's record holds already stay in it.
        generator: who answers; None only scores, and complains where an answer is missing.
        out: OUT/<suite>/{responses,outputs,scores}.jsonl and OUT/eval_record.json.
        listener: who is told how far it is.

    Raises:
        EvalError: data or a harness is missing, of all suites at once and before anything is asked; an answer can't
            be had.
        OutputError: OUT holds another model's answers, or can't be written to.
    """
    problems = [problem for job in jobs for problem in job.suite.requires()]
    if problems:
        raise EvalError(*problems)
    facts = claimed(out) if generator is None else model_facts(model, generator)
    if generator is not None:
        claim(out, facts)
    record = _begun(out, facts)
    for job in jobs:
        found = _Run(job, generator, out, listener or Deaf()).facts()
        with locked(out):  # another process may have put in a suite meanwhile
            record = _begun(out, facts)
            versions = record.versions | {"agentmerge": __version__} | job.suite.versions()
            suites = record.suites | {job.suite.name: found}
            record = EvalRecord(versions=versions, model=facts, suites=suites)
            record.save(out)
    return record


def scored(suite: Suite, generator: Generator) -> list[tuple[Item, dict[str, Cell]]]:
    """Every item with its cells, for a program that keeps nothing on the disk, such as a sweep.

    Raises:
        EvalError: as `evaluate`.
    """
    if problems := suite.requires():
        raise EvalError(*problems)
    items = suite.items()
    known: dict[str, Response] = {}

    def answer(round_: Round) -> Mapping[str, Response]:
        open_ = [request for request in round_.requests if request.key not in known]
        generator.generate(open_, lambda request, response: known.update({request.key: response}))
        return known

    outputs = converse_all(suite, items, answer)
    return list(zip(items, suite.score_all(items, outputs), strict=True))


def _begun(out: Path, facts: ModelFacts) -> EvalRecord:
    """The record so far, with the suites of earlier commands."""
    if (out / RECORD).is_file():
        return EvalRecord.load(out)
    return EvalRecord(versions={}, model=facts)


@dataclass
class _Run:
    """One suite's way from items to facts."""

    job: Job
    generator: Generator | None
    out: Path
    listener: Listener
    asked: dict[str, Response] = field(default_factory=dict)
    """Every distinct request of these conversations, by its key."""

    def facts(self) -> SuiteFacts:
        suite = self.job.suite
        items = limited(suite.items(), self.job.limit)
        with Answers(self.out / suite.name, asking=self.generator is not None) as answers:
            outputs = converse_all(suite, items, lambda round_: self._answer(round_, answers))
            seconds = answers.seconds
        write_lines(self.out / suite.name / OUTPUTS, _output_lines(suite.name, items, outputs))
        self.listener.scoring(suite.name, len(items))
        suite.folder = self.out / suite.name
        cells = suite.score_all(items, outputs)
        save_scores(self.out, suite.name, items, cells)
        return SuiteFacts(
            domain=suite.domain,
            preset=self.job.preset,
            settings=suite.settings.model_dump(mode="json"),
            limit=self.job.limit,
            data=[DataFacts(**vars(file)) for file in suite.data_files()],
            items=len(items),
            columns=_columns(suite, items, cells),
            scoring=suite.scoring(),
            requests=len(self.asked),
            tokens=Tokens(prompt=self._tokens("prompt_tokens"), generated=self._tokens("tokens")),
            cut_off=sum(not response.finished for response in self.asked.values()),
            empty=empty_of(self.asked.values()),
            seconds=seconds,
        )

    def _answer(self, round_: Round, answers: Answers) -> Mapping[str, Response]:
        """The answers to a turn's requests; those that are not stored are asked for."""
        open_ = [request for request in round_.requests if request.key not in answers.known]
        name = self.job.suite.name
        self.listener.asking(name, round_.turn, len(round_.requests) - len(open_), len(open_))
        if open_ and self.generator is None:
            raise unanswered(open_, name)
        if open_ and self.generator is not None:
            self.generator.generate(open_, lambda request, response: self._store(answers, request, response))
            if missing := [request for request in open_ if request.key not in answers.known]:
                raise unanswered(missing, name)
        self.asked |= {request.key: answers.known[request.key] for request in round_.requests}
        return answers.known

    def _store(self, answers: Answers, request: Request, response: Response) -> None:
        answers.add(request, response)
        self.listener.answered(response)

    def _tokens(self, kind: str) -> int | None:
        counts = [getattr(response, kind) for response in self.asked.values()]
        return None if None in counts else sum(counts)


def _output_lines(suite: str, items: Sequence[Item], outputs: Sequence[JSON]) -> list[dict[str, JSON]]:
    return [
        {"suite": suite, "item": item.id, "group": item.group, "output": output}
        for item, output in zip(items, outputs, strict=True)
    ]


def _columns(suite: Suite, items: Sequence[Item], cells: Sequence[Mapping[str, Cell]]) -> dict[str, ColumnFacts]:
    scores = [(item.group, metrics) for item, metrics in zip(items, cells, strict=True)]
    return {
        column.name: ColumnFacts(
            **summary(column, scores).model_dump(),
            label=column.label,
            metric=column.metric,
            groups=column.groups,
            combine=column.combine,
            counts=column.counts,
        )
        for column in suite.columns
    }
