"""A base and its agents on their way to one form: a value that every step of the chain makes anew."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, TypeVar

from agentmerge.errors import MergeError, Note

if TYPE_CHECKING:
    from pathlib import Path

    from agentmerge.alike.alignment import Alignment
    from agentmerge.alike.heads import HeadPair, Tie
    from agentmerge.recipe import Inputs
    from agentmerge.sources.source import Source

T = TypeVar("T")
Reads = Callable[[str, str], bool]
"""(tensor, agent): whether the recipe has this tensor of this agent read."""


@dataclass(frozen=True)
class Family:
    """Sources under the base's names and shapes as far as the chain has come, and what that means for the output."""

    base: Source
    agents: Mapping[str, Source]
    """By name; those that no step has left out. Until `set_apart` what the merge is put onto is among them."""
    inputs: Inputs
    reads: Reads
    folders: Mapping[str, Path]
    """Of every source that was opened, the base's under "base"."""
    configs: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    """config.json of every source, the base's under "base"."""
    pair: HeadPair | None = None
    """Embedding and head of the base."""
    tied: HeadPair | None = None
    """Where the output stores one tensor under two names."""
    ties: tuple[Tie, ...] = ()
    """To be checked when the data is read."""
    config_changes: Mapping[str, Any] = field(default_factory=dict)
    """What the output's config says otherwise; None takes a key out."""
    tokenizer_from: str = "base"
    notes: tuple[Note, ...] = ()
    """Beside those of the sources."""
    hints: Mapping[str, str] = field(default_factory=dict)
    """By agent: why its names were not matched with the base's."""
    onto: Source | None = None
    """What the merge's changes are added to, where that is not the base."""
    alignment: Alignment | None = None
    """Who has which of the base's tensors; None before the last step."""
    errors: tuple[MergeError, ...] = ()
    """In the order in which they were found; each problem knows whose it is."""

    @property
    def ground(self) -> Source:
        """Whose numbers the merge changes, and whose dtypes and side files the output has."""
        return self.base if self.onto is None else self.onto

    def each(self, step: Callable[[str, Source], T]) -> tuple[Family, dict[str, T]]:
        """A step for every agent.

        Args:
            step: of a name and an agent.

        Returns:
            The family without the agents that fail the step, and what it gave for the others.
        """
        family, found = self, {}
        for name, agent in self.agents.items():
            try:
                found[name] = step(name, agent)
            except MergeError as error:
                family = family.without(name, error)
        return family, found

    def without(self, name: str, error: MergeError) -> Family:
        """The family after one of its agents failed a step."""
        left = {other: agent for other, agent in self.agents.items() if other != name}
        return replace(self, agents=left).failed(error.located(self.agents[name].where))

    def failed(self, error: MergeError) -> Family:
        """The family with one error more."""
        return replace(self, errors=(*self.errors, error))

    def noted(self, *notes: Note) -> Family:
        """The family with some notes more."""
        return replace(self, notes=(*self.notes, *notes))

    def changed(self, **changes: Any) -> Family:
        """The family whose output's config says otherwise."""
        return replace(self, config_changes={**self.config_changes, **changes})
