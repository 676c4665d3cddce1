"""What an evaluation will cost: its conversations are held with a model that always answers nothing."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from agentmerge.errors import EvalError
from agentmerge.eval.conversations import Round, converse_all
from agentmerge.eval.execution.pool import REFUSED
from agentmerge.eval.request import Response
from agentmerge.eval.suite import limited
from agentmerge.eval.tokenizer import TextTokenizer
from agentmerge.frozen import Record

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from agentmerge.eval.request import Request
    from agentmerge.eval.run import Job

CHARACTERS = 4
"""Of a token of English text, about."""
NOTHING = Response("", finished=True, prompt_tokens=0, tokens=0)


class SuitePlan(Record):
    """One suite."""

    preset: str
    settings: dict[str, Any]
    items: int
    turns: int
    """Rounds of requests one after another; what an answer decides may make them fewer, or more prompts longer."""
    requests: int
    """Distinct ones."""
    prompt_tokens: int
    counted: bool
    """Whether by the model's tokenizer; else four characters are taken for a token."""
    most_new_tokens: int
    """If no answer ended by itself."""


def plan_all(jobs: Sequence[Job], tokenizer: str | None) -> dict[str, SuitePlan]:
    """What every suite will ask, by its name.

    Args:
        jobs: the suites.
        tokenizer: folder of the model's, where it is known.

    Raises:
        EvalError: data or a harness is missing, of all suites at once. No leave to run programs is needed: none is run.
    """
    problems = [problem for job in jobs for problem in job.suite.requires() if problem != REFUSED]
    if problems:
        raise EvalError(*problems)
    known = tokenizer is not None and not TextTokenizer.problems(tokenizer, "plan")
    count = TextTokenizer(Path(str(tokenizer))).count if known else None
    return {job.suite.name: planned(job, count) for job in jobs}


def planned(job: Job, count: Callable[[str], int] | None) -> SuitePlan:
    """What one suite will ask.

    Args:
        job: the suite.
        count: the model's tokens of a text; None where they are not known.
    """
    items = limited(job.suite.items(), job.limit)
    asked: dict[str, Request] = {}
    turns = 0

    def answer(round_: Round) -> Mapping[str, Response]:
        nonlocal turns
        turns = round_.turn
        asked.update({request.key: request for request in round_.requests})
        return dict.fromkeys((request.key for request in round_.requests), NOTHING)

    converse_all(job.suite, items, answer)
    return SuitePlan(
        preset=job.preset,
        settings=job.suite.settings.model_dump(mode="json"),
        items=len(items),
        turns=turns,
        requests=len(asked),
        prompt_tokens=_tokens(list(asked.values()), count),
        counted=count is not None,
        most_new_tokens=sum(request.sampling.max_tokens for request in asked.values()),
    )


def _tokens(requests: Sequence[Request], count: Callable[[str], int] | None) -> int:
    if count is None:
        return sum(len(request.text) for request in requests) // CHARACTERS
    return sum(count(request.text) for request in requests)
