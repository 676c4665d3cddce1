"""What the suite `code` lets choose."""

from __future__ import annotations

from pydantic import Field

from agentmerge.eval.cure.prompts import STOP, Style
from agentmerge.eval.cure.tables import Skip  # noqa: TC001 - pydantic reads it at run time
from agentmerge.eval.execution.isolation import Wish  # noqa: TC001 - as above
from agentmerge.eval.execution.trial import Comparator, Executor, Limits
from agentmerge.eval.suite import SampledSettings

SETS = ("LiveBench", "LiveCodeBench", "MBPP", "CodeContests", "CodeForces")
"""CURE's data sets."""


class CodeSettings(SampledSettings):
    """Of the suite `code`."""

    max_tokens: int = Field(default=10_000, ge=1)
    """New tokens after which an answer is cut off."""
    sets: tuple[str, ...] = SETS
    """Which of them; each is a file, NAME.json."""
    programs: int = Field(default=4, ge=1)
    """Sampled for every task; CURE's k_code."""
    cases: int = Field(default=4, ge=0)
    """Unit tests sampled for every task; CURE's k_case. 0 leaves best of n out."""
    best_of: tuple[tuple[int, int], ...] = ((4, 4),)
    """Programs and generated tests that the best one is chosen among and by."""
    max_tests: int | None = Field(default=8, ge=1)
    """True tests of a task that count, the first ones; null takes all."""
    examples: int = Field(default=0, ge=0)
    """Tests that the prompt for a unit test shows; 0 is CURE's no_example."""
    prompt: Style = "cure"
    """cure: CURE's raw text; chat: its words in the model's own chat template."""
    stop: tuple[str, ...] = STOP
    """Texts before which an answer ends."""
    skip: Skip = "cure"
    """Tasks of which no generated test can be read: cure counts them for nothing, never counts them."""
    executor: Executor = "lcb"
    """lcb: livecodebench's; script: the program runs as __main__, as CURE does."""
    comparator: Comparator = "cure"
    """cure: outputs are equal but for whitespace; lcb: line by line, numbers as decimals."""
    time_factor: float = Field(default=1.0, gt=0)
    """What a task's time limit is multiplied by, on a slow machine."""
    memory_mb: int = Limits.model_fields["memory_mb"].default
    """MiB that a program may take."""
    processes: int = Limits.model_fields["processes"].default
    """Processes and threads of a program, itself among them."""
    isolation: Wish = "auto"
    """auto takes the first that works of namespaces, bubblewrap and limits; another one must work."""

    @property
    def limits(self) -> Limits:
        """Of every program."""
        return Limits(memory_mb=self.memory_mb, processes=self.processes)
