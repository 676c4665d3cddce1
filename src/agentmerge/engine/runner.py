"""What every runner does: fold questions over a plan, then map it into an output. Abstract."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:
    from collections.abc import Sequence

    from agentmerge.engine.plan import Plan
    from agentmerge.files.writer import Writer
    from agentmerge.progress import Watch
    from agentmerge.survey.statistic import Statistic, Survey


@dataclass(frozen=True, slots=True)
class Target:
    """One output; the plans of several differ in their methods alone."""

    plan: Plan
    writer: Writer


class Runner(Protocol):
    """Does the work of a plan; the bytes and the answers do not depend on which runner did it."""

    def fold(
        self,
        plan: Plan,
        statistics: Sequence[Statistic[Any]],
        phase: str,
        writer: Writer | None,
        watch: Watch,
    ) -> Survey:
        """Answer questions over every merged element.

        Args:
            plan: what to read.
            statistics: the questions.
            phase: a name that tells this pass from the others of the same merge.
            writer: keeps finished answers, so that a killed run resumes; None keeps nothing.
            watch: is told of the progress.
        """

    def map(
        self, targets: Sequence[Target], survey: Survey, statistics: Sequence[Statistic[Any]], watch: Watch
    ) -> tuple[Survey, ...]:
        """Merge or copy every tensor into every target's shards, reading each stack once.

        Args:
            targets: what to do, and who takes the numbers and keeps what is finished.
            survey: the answers that the methods asked for.
            statistics: further questions about the inputs, answered on the way.
            watch: is told of the progress.

        Returns:
            Per target the answers to `statistics`, Rounding of the merged tensors, Copied of the copied ones, and what
            its methods ask after.
        """
