"""One agent: what it damages, where that lies, and what each remedy leaves of it."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING

import numpy as np

from agentmerge.errors import Note
from agentmerge.harm.places import Place, place_of
from agentmerge.harm.questions import answered
from agentmerge.harm.reading import Between, drop_of
from agentmerge.harm.record import HarmRow, PlaceRow, RemedyRow
from agentmerge.harm.remedies import candidates

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from agentmerge.harm.model import Model
    from agentmerge.harm.questions import Encoder
    from agentmerge.harm.reading import Reading, Weights
    from agentmerge.harm.remedies import Remedy
    from agentmerge.importance.data import Example
    from agentmerge.importance.tokens import TokenSequence
    from agentmerge.progress import Watch

UNEVEN = 0.25
"""Of a drop, by which its parts may miss it before a note says so."""


@dataclass(frozen=True)
class Bench:
    """What every agent is measured with."""

    model: Model
    encoder: Encoder
    asked: Mapping[str, Sequence[Example]]
    """By skill."""
    skills: Mapping[str, tuple[TokenSequence, ...]]
    """The same with the base's answers, as tokens; none of them empty."""
    base: Mapping[str, Reading]
    """What the base makes of its own answers."""
    owners: Mapping[str, Sequence[str]]
    """Agents by skill."""
    beyond: float
    """Standard errors that a drop must exceed."""
    watch: Watch

    @cached_property
    def places(self) -> dict[str, Place]:
        """Of every parameter."""
        return {name: place_of(stored) for name, stored in self.model.stored.items()}


class Agent:
    """One agent on the bench."""

    def __init__(self, bench: Bench, name: str, weights: Weights) -> None:
        self.bench, self.name, self.weights = bench, name, weights
        self.energy = self._by_place(bench.model.energy(weights))
        self.notes: list[Note] = []

    @cached_property
    def rows(self) -> list[HarmRow]:
        """What it does to every skill."""
        bench = self.bench
        bench.watch.begin(f"harm of {self.name}, tokens", sum(map(_tokens, bench.skills.values())))
        bench.model.become(Between(self.weights))
        return [self._row(skill, examples) for skill, examples in bench.skills.items()]

    @cached_property
    def harmed(self) -> list[str]:
        """Skills that it damages."""
        return [row.skill for row in self.rows if row.harmed]

    def measure(self) -> tuple[list[PlaceRow], list[tuple[Remedy, RemedyRow]]]:
        """Where the damage lies and what each remedy makes of it; nothing where there is none."""
        if not self.harmed:
            return [], []
        bench, model = self.bench, self.bench.model
        examples = [one for skill in self.harmed for one in bench.skills[skill]]
        own = self._own_answers()
        bench.watch.begin(f"where {self.name} does harm, tokens", _tokens(examples) + _tokens(own))
        drops = self._by_place(model.trace(self.weights, examples))
        self._compare(sum(drops.values()), examples)
        bench.watch.advance(_tokens(examples))
        gains = {place: -x for place, x in self._by_place(model.trace(self.weights, own)).items()} if own else {}
        bench.watch.advance(_tokens(own))
        return self._place_rows(drops, gains), self._tried(candidates(drops, gains, self.energy), own)

    def _place_rows(self, drops: Mapping[Place, float], gains: Mapping[Place, float]) -> list[PlaceRow]:
        whole = sum(self.energy.values())
        return [
            PlaceRow(
                agent=self.name,
                place=str(place),
                glob=place.glob,
                drop=drop,
                own=gains.get(place),
                energy=self.energy[place] / whole,
            )
            for place, drop in drops.items()
        ]

    def _compare(self, traced: float, examples: Sequence[TokenSequence]) -> None:
        """Note where the places do not add up to the drop that they are parts of."""
        rows = [row for row in self.rows if row.harmed]
        drop = sum(row.drop * len(self.bench.skills[row.skill]) for row in rows) / len(examples)
        if abs(traced - drop) > UNEVEN * drop:
            found = f"{self.name}: the drops of the places add up to {traced:.2f} of {drop:.2f} nats an answer"
            why = "as they do where other experts are chosen, or the agent is far from the base"
            self.notes.append(Note(f"{found}, {why}: read them as a ranking. Remedies are measured, not estimated."))

    def _row(self, skill: str, examples: Sequence[TokenSequence]) -> HarmRow:
        bench = self.bench
        reading, own = bench.model.read(examples), self.name in bench.owners[skill]
        bench.watch.advance(_tokens(examples))
        lost, lengths = drop_of(bench.base[skill], reading, examples), np.array([len(one.response) for one in examples])
        beyond = lost.mean > bench.encoder.options.limit and lost.mean > bench.beyond * lost.error
        return HarmRow(
            agent=self.name,
            skill=skill,
            own=own,
            drop=lost.mean,
            error=lost.error,
            kept_tokens=float(reading.hits.sum() / lengths.sum()),
            kept_answers=float((reading.hits == lengths).mean()),
            harmed=beyond and not own,
        )

    def _own_answers(self) -> tuple[TokenSequence, ...]:
        """The agent's own answers to the prompts of its own skills."""
        bench = self.bench
        prompts = [one for skill, owners in bench.owners.items() if self.name in owners for one in bench.asked[skill]]
        bench.model.become(Between(self.weights))
        return answered(prompts, bench.encoder, bench.model.answers, given=False)

    def _tried(self, tried: Sequence[Remedy], own: Sequence[TokenSequence]) -> list[tuple[Remedy, RemedyRow]]:
        """Every remedy measured."""
        bench, model = self.bench, self.bench.model
        each = sum(_tokens(bench.skills[skill]) for skill in self.harmed) + _tokens(own)
        bench.watch.begin(f"remedies for {self.name}, tokens", (len(tried) + 2) * each)
        ends = []
        for what in (Between(), Between(self.weights)) if own else ():
            model.become(what)
            ends.append(model.read(own))
        bench.watch.advance(2 * each)
        found = []
        for remedy in tried:
            skipped = frozenset(name for name, place in bench.places.items() if place in remedy.skipped)
            model.become(Between(self.weights, remedy.weight, skipped))
            found.append((remedy, self._remedy(remedy, own, ends)))
            bench.watch.advance(each)
        return found

    def _remedy(self, remedy: Remedy, own: Sequence[TokenSequence], ends: Sequence[Reading]) -> RemedyRow:
        """What the model, as it is now, has lost and kept."""
        bench = self.bench
        before = {row.skill: row.drop for row in self.rows if row.harmed}
        now = {
            skill: drop_of(bench.base[skill], bench.model.read(bench.skills[skill]), bench.skills[skill]).mean
            for skill in before
        }
        kept = None
        if own:
            base, agent = ends
            reading = bench.model.read(own)
            way = drop_of(agent, base, own).mean
            kept = 1 - drop_of(agent, reading, own).mean / way if way > 0 else None
        stays = sum(energy for place, energy in self.energy.items() if place not in remedy.skipped)
        return RemedyRow(
            agent=self.name,
            change=remedy.change(self.name, bench.places.values()),
            drop=max(now.values()),
            left=sum(now.values()) / sum(before.values()),
            own=kept,
            energy=remedy.weight**2 * stays / sum(self.energy.values()),
            safe=max(now.values()) <= bench.encoder.options.limit,
        )

    def _by_place(self, values: Mapping[str, float]) -> dict[Place, float]:
        """Sums of what the parameters have, in the order of the model."""
        found: dict[Place, float] = {}
        for name, value in values.items():
            place = self.bench.places[name]
            found[place] = found.get(place, 0.0) + value
        return found


def _tokens(examples: Sequence[TokenSequence]) -> int:
    return sum(one.tokens for one in examples)
