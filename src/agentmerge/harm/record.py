"""What was found of every agent, as typed JSON."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from agentmerge.eval.compare.rows import Judgement  # noqa: TC001 - pydantic reads it at run time
from agentmerge.files.staging import replace_file
from agentmerge.frozen import Frozen, Record
from agentmerge.importance.record import Settings  # noqa: TC001

if TYPE_CHECKING:
    from pathlib import Path

FORMULA = "drop = mean over the prompts of (log p_base(answer) - log p_agent(answer)) * min(1, 16 / tokens)"


class SkillRow(Frozen):
    """The prompts of one skill."""

    skill: str
    """"" where the file names none."""
    prompts: int
    tokens: int
    """Of all answers."""
    given: int
    """Answers that the file has; the base gave the others, greedily."""
    likelihood: float
    """Of a token under the base, the mean; far below 0: these answers are not the base's own."""
    owners: list[str]
    """Agents that were trained on it: what they change there is wanted."""


class HarmRow(Frozen):
    """One agent on the prompts of one skill."""

    agent: str
    skill: str
    own: bool
    """Whether it was trained on it, and so is not judged there."""
    drop: float
    """Nats an answer, see the record's formula; below 0: the agent is surer of these answers than the base."""
    error: float
    """Standard error of the drop over the prompts."""
    kept_tokens: float
    """Share of the answers' tokens that the agent would still give greedily, behind the same beginning."""
    kept_answers: float
    """Share of the answers that it would still give greedily, token by token."""
    harmed: bool
    """Not its own, above the limit, and above 0 beyond noise."""


class PlaceRow(Frozen):
    """How much of a drop comes from one place of the model."""

    agent: str
    place: str
    glob: str
    """The tensors, as a rule writes it."""
    drop: float
    """Nats an answer over the prompts of the skills that it damages; they add up to the drop there."""
    own: float | None
    """The same of what it gains on its own answers to prompts of its own skills; null where there are none."""
    energy: float
    """Its part of the squared length of the task vector."""


class RemedyRow(Frozen):
    """One way to take the damage out, measured on the base with this agent alone."""

    agent: str
    change: dict[str, Any]
    """Of the recipe, as its fields."""
    drop: float
    """Nats an answer, the largest of the skills that the agent damages."""
    left: float
    """The sum of those drops, as a share of the agent's."""
    own: float | None
    """How much nearer it stays to the agent than to the base on the agent's own answers: 1 the agent, 0 the base; null
    without prompts of its own skills."""
    energy: float
    """Share of the squared length of the task vector that stays."""
    safe: bool
    """No skill stays above the limit."""


class HarmRecord(Record):
    """What the agents of a recipe damage of what their base could do."""

    format: str = "agentmerge.harm/1"
    formula: str = FORMULA
    base: str
    agents: list[str]
    data: str
    """The file of prompts."""
    sha256: str
    """Of its bytes."""
    limit: float
    beyond: float
    """Standard errors that a drop must exceed: 5 % for all comparisons together (Bonferroni, one-sided)."""
    settings: Settings
    skills: list[SkillRow]
    lengths: dict[str, float]
    """Of the agents' task vectors."""
    rows: list[HarmRow]
    places: list[PlaceRow]
    """Of agents that damage something."""
    remedies: list[RemedyRow]
    verdict: list[Judgement]
    change: dict[str, Any]
    """All advice together, as fields of the recipe and `leave_out`; {} where nothing needs to change."""
    versions: dict[str, str]
    warnings: list[str]

    @property
    def harmful(self) -> list[str]:
        """Agents that damage something."""
        return list(dict.fromkeys(row.agent for row in self.rows if row.harmed))

    def save(self, path: Path) -> None:
        """Write it as JSON.

        Raises:
            OutputError: it can't be written there.
        """
        replace_file(path, (self.model_dump_json(indent=1) + "\n").encode())

    @classmethod
    def load(cls, path: Path) -> HarmRecord:
        """Read it back."""
        return cls.model_validate_json(path.read_bytes())
