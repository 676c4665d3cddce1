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
LEAST = 0.01
"""Share of a drop below which a place is no matter."""
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
    """What is worth measuring, the simplest first: weights; whole parts; places by how much of the drop they hold.

    Places are ranked by their share of the drop, and by that less their share of what the agent does for its own
    skills (of its task vector's squared length where that is not known).

    Args:
        drops: of the damaged skills, by place; they add up to the drop.
        own: what the agent gains on its own answers, likewise; {} where that is not known.
        energy: of the task vector.
    """
    use = own if sum(own.values()) > 0 else energy
    harm, gain = sum(drops.values()) or 1.0, sum(use.values()) or 1.0
    share = {place: drop / harm for place, drop in drops.items() if energy[place]}
    places = [place for place, part in share.items() if part >= LEAST]
    net = {place: share[place] - use[place] / gain for place in places}
    parts = [[place for place in share if place.part == part] for part in dict.fromkeys(one.part for one in places)]
    ranked = [sorted(sorted(places), key=by.__getitem__, reverse=True) for by in (share, net)]
    groups = [*parts, *(_covering(order, share, part) for order in ranked for part in COVERED)]
    groups.append([place for place in places if net[place] > 0])
    skips = [frozenset(group) for group in groups if group and len(group) < len(share)]
    return [*(Remedy(weight) for weight in WEIGHTS), *(Remedy(skipped=group) for group in dict.fromkeys(skips))]


def best(rows: Sequence[RemedyRow]) -> RemedyRow | None:
    """Of one agent's remedies the one that keeps most less what it leaves; None where none is worth it.

    Only those that are safe count, and a lower weight only where nothing can be skipped: every method skips alike, but
    one that scales to a retention (`ram_plus_auto`, `calibrate`) makes up for a part of a weight.
    """
    safe = [row for row in rows if row.safe and kept(row) >= WORTH and kept(row) > row.left]
    skips = [row for row in safe if "rules" in row.change]
    return max(skips or safe, key=lambda row: kept(row) - max(row.left, 0.0), default=None)


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
    """A recipe with the advice in it: weights are multiplied, rules come behind its own.

    Where a rule of its own skips agents on the same tensors, the advice takes its place there, as a later rule does.

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
        raise RecipeError(
            f"the advice does not fit the recipe: {error}", todo=todo, where=Where(path="rules")
        ) from None


def as_yaml(recipe: Recipe) -> str:
    """The recipe as YAML, without what is as it is where nothing is said."""
    usual = {name: field.get_default() for name, field in Recipe.model_fields.items() if not field.is_required()}
    told = {name: value for name, value in recipe.dump().items() if getattr(recipe, name) != usual.get(name, ...)}
    return yaml.safe_dump(told, sort_keys=False, default_flow_style=None, width=110, allow_unicode=True)


def _covering(order: Sequence[Place], share: Mapping[Place, float], wanted: float) -> list[Place]:
    """The first places of an order that hold this share of the drop, all of them where they hold less."""
    held = 0.0
    for i, place in enumerate(order):
        held += share[place]
        if held >= wanted:
            return list(order[: i + 1])
    return list(order)


def _without(rules: Sequence[Mapping[str, Any]], left_out: set[str]) -> list[dict[str, Any]]:
    """Rules that skip nobody who is not there."""
    return [
        {**rule, "skip": [name for name in rule["skip"] if name not in left_out]} if "skip" in rule else dict(rule)
        for rule in rules
    ]
