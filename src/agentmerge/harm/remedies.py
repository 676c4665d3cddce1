"""Ways to take an agent's damage out of a merge: which are tried, which is best, and what they make of a recipe."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import yaml

from agentmerge.errors import RecipeError, Where
from agentmerge.harm.places import Place, globs_of
from agentmerge.recipe import Recipe

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from agentmerge.harm.record import RemedyRow

WEIGHTS = (0.75, 0.5, 0.25)
COVERED = (0.5, 0.75, 0.9)
"""Shares of a drop, whose fewest places are skipped together."""
WORTH = 0.25
"""How much of an agent a remedy must keep; below, the agent is left out."""


@dataclass(frozen=True)
class Remedy:
    """A lower weight, or places in which the agent is skipped."""

    weight: float = 1.0
    skipped: frozenset[Place] = frozenset()

    def change(self, agent: str, every: Iterable[Place]) -> dict[str, Any]:
        """The recipe's fields."""
        if not self.skipped:
            return {"agents": {agent: {"weight": self.weight}}}
        return {"rules": [{"tensors": glob, "skip": [agent]} for glob in globs_of(self.skipped, every)]}


def candidates(drops: Mapping[Place, float], own: Mapping[Place, float], energy: Mapping[Place, float]) -> list[Remedy]:
    """What is worth measuring, the simplest first.

    Args:
        drops: of the damaged skills, by place; they add up to the drop.
        own: what the agent gains on its own answers, likewise; {} where that is not known.
        energy: of the task vector.
    """
    places = [place for place in drops if energy[place]]
    found = [Remedy(weight) for weight in WEIGHTS]
    for part in dict.fromkeys(place.part for place in places):
        found.append(Remedy(skipped=frozenset(place for place in places if place.part == part)))
    use = own if sum(own.values()) > 0 else energy
    harm, gain = sum(drops.values()) or 1.0, sum(use.values()) or 1.0
    net = {place: drops[place] / harm - use[place] / gain for place in places}
    for ranked in (drops, net):
        order = sorted(places, key=lambda place, by=ranked: (-by[place], place))
        found += [Remedy(skipped=_covering(order, drops, share)) for share in COVERED]
    found.append(Remedy(skipped=frozenset(place for place, value in net.items() if value > 0)))
    whole = frozenset(places)
    return [one for one in dict.fromkeys(found) if one.skipped != whole and (one.skipped or one.weight != 1)]


def best(rows: Sequence[RemedyRow]) -> RemedyRow | None:
    """Of the remedies of one agent that are safe, the one that keeps most of it; None where none is worth it."""
    safe = [row for row in rows if row.safe and kept(row) >= WORTH]
    return max(safe, key=kept, default=None)


def kept(row: RemedyRow) -> float:
    """How much of an agent stays: of what it does for its own skills, else of its task vector's squared length."""
    return row.energy if row.own is None else row.own


def together(chosen: Mapping[str, Remedy | None], every: Iterable[Place]) -> dict[str, Any]:
    """The advice for several agents as one change of a recipe.

    A later rule's `skip` replaces an earlier one's, so no two of these rules fit the same tensor.

    Args:
        chosen: by agent; None leaves it out.
        every: all places of the model.
    """
    left_out = [agent for agent, remedy in chosen.items() if remedy is None]
    weights = {agent: {"weight": one.weight} for agent, one in chosen.items() if one is not None and one.weight != 1}
    skipping: dict[tuple[str, ...], set[Place]] = {}
    for place in (places := list(every)):
        agents = tuple(agent for agent, one in chosen.items() if one is not None and place in one.skipped)
        skipping.setdefault(agents, set()).add(place)
    rules = [
        {"tensors": glob, "skip": list(agents)}
        for agents, meant in skipping.items()
        if agents
        for glob in globs_of(meant, places)
    ]
    parts = {"leave_out": left_out, "agents": weights, "rules": rules}
    return {name: part for name, part in parts.items() if part}


def applied(recipe: Recipe, change: Mapping[str, Any]) -> Recipe:
    """A recipe with the advice in it.

    Raises:
        RecipeError: no agent would be left, or the recipe speaks of one that is left out.
    """
    data, left_out = recipe.dump(), set(change.get("leave_out", ()))
    if left_out >= set(data["agents"]):
        raise RecipeError("every agent damages the base, and none is worth keeping", todo="Don't merge; use the base.")
    data["agents"] = {name: agent for name, agent in data["agents"].items() if name not in left_out}
    for name, fields in change.get("agents", {}).items():
        weight = data["agents"][name]["weight"] * fields["weight"]
        data["agents"][name] = {**data["agents"][name], "weight": weight}
    data["rules"] = [*_without(data["rules"], left_out), *change.get("rules", ())]
    try:
        return Recipe.parse(data, "advice")
    except RecipeError as error:
        todo = f"Leave {', '.join(sorted(left_out))} out by hand." if left_out else "Change the recipe by hand."
        raise RecipeError(f"the advice does not fit the recipe: {error}", todo=todo, where=Where(path="rules")) from None


def as_yaml(recipe: Recipe) -> str:
    """The recipe as YAML, without what is as it is where nothing is said."""
    usual = {name: field.get_default() for name, field in Recipe.model_fields.items() if not field.is_required()}
    told = {name: value for name, value in recipe.dump().items() if getattr(recipe, name) != usual.get(name, ...)}
    return yaml.safe_dump(told, sort_keys=False, default_flow_style=None, width=110, allow_unicode=True)


def _covering(order: Sequence[Place], drops: Mapping[Place, float], share: float) -> frozenset[Place]:
    """The first places of an order that hold this share of the drop."""
    wanted, held, found = share * sum(drops.values()), 0.0, set()
    for place in order:
        if held >= wanted:
            break
        found.add(place)
        held += drops[place]
    return frozenset(found)


def _without(rules: Sequence[Mapping[str, Any]], left_out: set[str]) -> list[dict[str, Any]]:
    """Rules that skip nobody who is not there."""
    return [
        {**rule, "skip": [name for name in rule["skip"] if name not in left_out]} if "skip" in rule else dict(rule)
        for rule in rules
    ]
