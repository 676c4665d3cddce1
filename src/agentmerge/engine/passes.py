"""What is asked in each pass: until the methods ask no more, then in the pass that writes. Decided here alone."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from math import lcm
from typing import TYPE_CHECKING, Any, Protocol

from agentmerge.analysis.measured import sample_of
from agentmerge.methods.base import before_merging, while_merging
from agentmerge.survey.common import Common
from agentmerge.survey.copied import Copied
from agentmerge.survey.full.question import Profile
from agentmerge.survey.integrity import Integrity
from agentmerge.survey.restored import Restored
from agentmerge.survey.retention import RegionRetention
from agentmerge.survey.rounding import Rounding

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence

    from agentmerge.engine.plan import Job, Plan
    from agentmerge.files.layout import Place
    from agentmerge.methods.base import MergeMethod
    from agentmerge.survey.statistic import AfterStatistic, Foldable, Statistic, Survey
    from agentmerge.tensors import Array

    Questions = Callable[[Plan], tuple[Foldable[Any], ...]]
    """What is asked of a plan beside what its methods ask: Statistics of the inputs, AfterStatistics of the result."""


OF_BYTES = (Integrity(), Common())
"""What is asked of the stacks as they were read, whatever is made of them."""


class Keeper(Protocol):
    """Keeps what a pass finished, so that a killed run resumes."""

    @property
    def entries(self) -> Sequence[Mapping[str, Any]]:
        """What earlier runs finished."""

    def commit(self, entries: Iterable[Mapping[str, Any]]) -> None:
        """Keep more; it returns when the entries, and all that was written before, are safe."""


class Sink(Keeper, Protocol):
    """Takes the numbers too."""

    def write(self, place: Place, start: int, array: Array) -> None:
        """Put elements [start, start + array.size) of a tensor in their place; from any thread."""


@dataclass(frozen=True, slots=True)
class Output:
    """One merge that a pass makes; the plans of several differ in their methods' settings alone."""

    plan: Plan
    sink: Sink
    after: Mapping[MergeMethod, tuple[AfterStatistic[Any], ...]] = field(default_factory=dict)
    """By method, what is answered of what it makes of a stack; its rounding first."""

    def asking(self, survey: Survey, beside: Questions) -> Output:
        """The same once the survey holds all that the methods ask before they merge."""
        after = {method: self._after(method, survey, beside) for method in self.plan.methods}
        return replace(self, after=after)

    def _after(self, method: MergeMethod, survey: Survey, beside: Questions) -> tuple[AfterStatistic[Any], ...]:
        rounding = Rounding(method.overlap.threshold)
        return _once((rounding,), while_merging(method.ask(survey)), while_merging(beside(self.plan)))

    @property
    def questions(self) -> tuple[Foldable[Any], ...]:
        """Everything that may be answered of its results: of what is copied, and of what is merged."""
        roundings = [questions[0] for questions in self.after.values()]
        return _once((Copied(),), roundings, (Rounding(),), *(questions[1:] for questions in self.after.values()))


@dataclass(frozen=True, slots=True)
class Pass:
    """One reading of the same stacks: it answers what is still asked; one with outputs merges and writes besides."""

    name: str
    """Tells the pass from the others of its run, to people too."""
    jobs: tuple[Job, ...]
    """In the order in which they are read."""
    asked: tuple[Statistic[Any], ...]
    """Of every stack that is merged."""
    outputs: tuple[Output, ...] = ()
    keeper: Keeper | None = None
    """Of a pass without outputs; None keeps nothing."""

    def asked_of(self, job: Job) -> tuple[Statistic[Any], ...]:
        """What is asked of a job's stacks."""
        return job.asks or (self.asked if job.method is not None else ())

    def share(self, job: Job) -> float:
        """What a job takes of the machine, in folds too; see `Work.share`."""
        works = [job.work, *(output.plan.job(job.name).work for output in self.outputs if job.places)]
        asked = [question.share(job.tensor, len(job.agents)) for question in self.asked_of(job)]
        return max([*asked, *(work.share for work in works)])

    def step(self, job: Job) -> int:
        """Elements of which blocks have a multiple: what is asked may have to see more than the job's method."""
        asked = (question.reach(job.tensor, len(job.agents)) for question in self.asked_of(job))
        return lcm(job.step, *(job.step_of(reach) for reach in asked))

    def flop(self, job: Job) -> float:
        """What a job computes at length in this pass; what a fold drafted is only read in the last one."""
        asked = [question.flop(job.tensor, len(job.agents)) for question in self.asked_of(job)]
        works = [output.plan.job(job.name).work for output in self.outputs if job.places]
        return sum(asked) + sum(work.flop for work in works if not work.draft)

    @property
    def keepers(self) -> tuple[Keeper | None, ...]:
        """Who keeps what is finished: one per output, or one for the answers alone."""
        return tuple(output.sink for output in self.outputs) or (self.keeper,)

    def questions(self) -> tuple[tuple[Foldable[Any], ...], ...]:
        """Everything that may be answered, for each keeper."""
        comparing = tuple(question for job in self.jobs for question in job.asks)
        if not self.outputs:
            return (_once(self.asked, comparing),)
        return tuple(_once(self.asked, comparing, output.questions) for output in self.outputs)


def nothing(plan: Plan) -> tuple[Foldable[Any], ...]:
    """Nothing beside what the methods ask."""
    return ()


def of_a_report(plan: Plan) -> tuple[Foldable[Any], ...]:
    """All that a report shows: the full probe, and what the stored merge keeps of each agent by region."""
    threshold = plan.recipe.method.overlap.threshold
    return Profile(threshold, sample_of(plan.elements)), RegionRetention(threshold)


def fold(plans: Sequence[Plan], survey: Survey, number: int, keeper: Keeper | None, beside: Questions) -> Pass | None:
    """The next pass that only reads; None where the methods of all plans are ready to merge.

    Args:
        plans: of the same sources.
        survey: every answer so far.
        number: of such passes so far; the first also asks what every record reports.
        keeper: of what is finished.
        beside: what is asked besides.
    """
    asked = _asked(plans, survey)
    return _reading(plans, f"fold {number}", asked, survey, number, keeper, beside) if asked else None


def probe(plan: Plan, survey: Survey, beside: Questions) -> Pass:
    """The one pass of a probe: what every record reports, and what the method asks first."""
    return _reading([plan], "probe", _asked([plan], survey), survey, 0, None, beside)


def last(outputs: Sequence[Output], survey: Survey, number: int, beside: Questions) -> Pass:
    """The pass that merges: it asks what no other did, and again what tells whether these are the bytes of the folds.

    It goes backwards: what was read last is still in the page cache where not all of the inputs fit.
    """
    plans = [output.plan for output in outputs]
    asked = tuple(q for q in _always(plans, beside) if q in OF_BYTES or not survey.knows(q))
    comparisons = plans[0].comparisons if number == 0 else ()
    ready = tuple(output.asking(survey, beside) for output in outputs)
    return Pass("map", (*comparisons, *plans[0].jobs[::-1]), asked, ready)


def _reading(
    plans: Sequence[Plan],
    name: str,
    asked: tuple[Statistic[Any], ...],
    survey: Survey,
    number: int,
    keeper: Keeper | None,
    beside: Questions,
) -> Pass:
    first = number == 0
    jobs = (*(plans[0].comparisons if first else ()), *plans[0].merged)
    return Pass(name, jobs, _once(_always(plans, beside) if first else (), asked), keeper=keeper)


def _always(plans: Sequence[Plan], beside: Questions) -> tuple[Statistic[Any], ...]:
    """What every record reports, whatever the methods ask, and what is asked besides."""
    overlaps = [plan.recipe.method.overlap for plan in plans]
    restored = [Restored()] if any(plan.rounding for plan in plans) else []
    further = [question for plan in plans for question in before_merging(beside(plan))]
    return _once(overlaps, OF_BYTES, restored, further)


def _asked(plans: Sequence[Plan], survey: Survey) -> tuple[Statistic[Any], ...]:
    methods = dict.fromkeys(method for plan in plans for method in plan.methods)
    return _once(*(before_merging(method.ask(survey)) for method in methods))


def _once(*groups: Iterable[Any]) -> tuple[Any, ...]:
    return tuple(dict.fromkeys(question for group in groups for question in group))
