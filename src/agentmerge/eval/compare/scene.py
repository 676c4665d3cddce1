"""What the verdict looks at: rows by role, units, specialists, and families of tests."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, NamedTuple

from agentmerge.eval.compare.resampled import holm
from agentmerge.eval.compare.rows import MEAN

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from agentmerge.eval.compare.paired import Paired
    from agentmerge.eval.compare.rows import DifferenceRow, ModelRow, RetentionRow, UnitRow
    from agentmerge.record import MergeRecord

ALPHA = 0.05
"""Probability that a family of tests calls any difference real that is not (Holm over the family)."""


class Tested(NamedTuple):
    """A difference and its p among all that were asked with it."""

    difference: DifferenceRow
    p: float

    @property
    def lower(self) -> bool:
        """Whether the row is below the other, beyond noise."""
        return self.difference.value < 0 and self.p < ALPHA

    @property
    def higher(self) -> bool:
        """Whether the row is above the other, beyond noise."""
        return self.difference.value > 0 and self.p < ALPHA


@dataclass(frozen=True)
class Scene:
    """See the head of this file."""

    models: list[ModelRow]
    units: list[UnitRow]
    specialists: Mapping[str, str]
    """Agents by skill."""
    paired: Paired
    merges: Mapping[str, MergeRecord]
    """By merged model, where the record of the merge is at hand."""

    @cached_property
    def base(self) -> str | None:
        """Its row."""
        return next((model.name for model in self.models if model.role == "base"), None)

    @cached_property
    def agents(self) -> list[str]:
        """Their rows."""
        return [model.name for model in self.models if model.role == "agent"]

    @cached_property
    def merged(self) -> list[str]:
        """Their rows."""
        return [model.name for model in self.models if model.role == "merged"]

    @cached_property
    def skills(self) -> list[UnitRow]:
        """The units that are skills."""
        return [unit for unit in self.units if unit.kind == "skill"]

    @cached_property
    def best_agent(self) -> str | None:
        """The agent with the best mean of all columns."""
        return self._best(self.agents)

    @cached_property
    def best_merge(self) -> str | None:
        """The merged model with the best mean of all columns."""
        return self._best(self.merged)

    @cached_property
    def broken(self) -> dict[str, list[Tested]]:
        """By agent, where it is below the base."""
        lower = [one for one in self.agents_to_base if one.lower]
        return {agent: own for agent in self.agents if (own := [one for one in lower if one.difference.row == agent])}

    @cached_property
    def harmful(self) -> list[str]:
        """Agents that broke something which a merge took over."""
        return [agent for agent in self.broken if self.heirs(agent)]

    def heirs(self, agent: str) -> list[Tested]:
        """Where merges are below the base as this agent is."""
        units = {one.difference.unit for one in self.broken.get(agent, ())}
        return [one for one in self.merges_to_base if one.lower and one.difference.unit in units]

    def kept(self, merge: str, unit: str) -> RetentionRow | None:
        """What a merge keeps of the gain of a skill's specialist; None where one of them lacks it."""
        skill = self.paired.units[unit]
        agent = self.specialists.get(skill.skill)
        return self.paired.retention(merge, agent, self.base, skill) if agent and self.base else None

    def mean(self, row: str) -> float | None:
        """A row's mean of all columns."""
        found = self.paired.estimate(row, MEAN)
        return None if found is None else found.mean

    def label(self, unit: str) -> str:
        """A unit in a sentence."""
        return self.paired.units[unit].label

    @cached_property
    def agents_to_base(self) -> list[Tested]:
        """Every agent against the base, in every skill and column."""
        return self._family((agent, self.base) for agent in self.agents)

    @cached_property
    def merges_to_base(self) -> list[Tested]:
        """Every merged model against the base, in every skill and column."""
        return self._family((merge, self.base) for merge in self.merged)

    @cached_property
    def merges_to_specialists(self) -> list[Tested]:
        """Every merged model against the specialist, skill by skill."""
        pairs = [(merge, agent) for merge in self.merged for agent in dict.fromkeys(self.specialists.values())]
        own = {f"skill/{skill}": agent for skill, agent in self.specialists.items()}
        found = [one for pair in pairs for one in self._differences(pair) if own.get(one.unit) == pair[1]]
        return _tested(found)

    @cached_property
    def among_merges(self) -> list[Tested]:
        """The best merged model against every other, in the mean.

        Adjusted for all pairs, as it was picked for its score.
        """
        pairs = [(a, b) for i, a in enumerate(self.merged) for b in self.merged[i + 1 :]]
        found = _tested([one for pair in pairs for one in self._differences(pair) if one.unit == MEAN])
        return [_turned(one, self.best_merge) for one in found if self.best_merge in self._names(one)]

    @cached_property
    def merges_to_best_agent(self) -> list[Tested]:
        """Every merged model against the agent with the best mean, in the mean.

        Adjusted for all agents, as it was picked for its score.
        """
        pairs = [(merge, agent) for merge in self.merged for agent in self.agents]
        found = _tested([one for pair in pairs for one in self._differences(pair) if one.unit == MEAN])
        return [one for one in found if one.difference.against == self.best_agent]

    def _family(self, pairs: Iterable[tuple[str, str | None]]) -> list[Tested]:
        """In skills of several columns and in every column: a skill of one column is that column."""
        wanted = {u.id for u in self.units if u.kind == "column" or (u.kind == "skill" and len(u.columns) > 1)}
        return _tested([one for pair in pairs for one in self._differences(pair) if one.unit in wanted])

    def _differences(self, pair: tuple[str, str | None]) -> list[DifferenceRow]:
        row, other = pair
        return [] if other is None else list(self.paired.differences(row, other).values())

    def _best(self, rows: list[str]) -> str | None:
        means = {row: mean for row in rows if (mean := self.mean(row)) is not None}
        return max(means, key=means.__getitem__) if means else None

    @staticmethod
    def _names(one: Tested) -> tuple[str, str]:
        return one.difference.row, one.difference.against


def _tested(differences: list[DifferenceRow]) -> list[Tested]:
    return list(map(Tested, differences, holm([one.p for one in differences])))


def _turned(one: Tested, first: str | None) -> Tested:
    """The same difference from the side of `first`."""
    d = one.difference
    if d.row == first:
        return one
    turned = {"row": d.against, "against": d.row, "value": -d.value, "low": -d.high, "high": -d.low}
    return Tested(d.model_copy(update=turned), one.p)
