"""What the recipe's rules say of each tensor. Knows names only."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from agentmerge.engine.globs import Globs
from agentmerge.errors import RecipeError, Where

if TYPE_CHECKING:
    from agentmerge.methods.base import MergeMethod
    from agentmerge.recipe import Recipe


@dataclass(frozen=True, slots=True)
class Decision:
    """The method of one tensor, or where to take it from."""

    method: MergeMethod
    take: str | None
    skip: frozenset[str]
    reason: str
    """Why it is copied; "" where it is merged."""

    def reads(self, agent: str) -> bool:
        """Whether the agent's tensor is read: of one that is copied the source alone, even where that is skipped."""
        return agent == self.take if self.take is not None else agent not in self.skip


class Rules:
    """The rules of one recipe; later rules win, setting by setting."""

    def __init__(self, recipe: Recipe) -> None:
        self._recipe = recipe
        self._numbers: dict[str, list[int]] = {}
        for i, rule in enumerate(recipe.rules):
            self._numbers.setdefault(rule.tensors, []).append(i)
        self._globs = Globs(self._numbers)
        self._decided: dict[frozenset[str], Decision] = {}
        self._applied: dict[tuple[int, int], MergeMethod] = {}

    def decide(self, tensor: str) -> Decision:
        """What the matching rules make of the recipe, in their order; the same for all tensors that the same match."""
        matching = frozenset(self._globs.fitting(tensor))
        if matching not in self._decided:
            numbers = sorted(i for glob in matching for i in self._numbers[glob])
            self._decided[matching] = self._decision(numbers, tensor)
        return self._decided[matching]

    def _decision(self, numbers: list[int], tensor: str) -> Decision:
        """What these rules say: one with settings ends an earlier `take`; `skip` holds until a later one has it."""
        method, take, skip, reason = self._recipe.method, None, frozenset[str](), ""
        for i in numbers:
            rule = self._recipe.rules[i]
            if rule.settings:
                method = self._vary(method, i, tensor)
            if rule.says("skip"):
                skip = frozenset(rule.skip)
            if rule.says("take") or rule.settings:
                take = rule.take
                reason = f"rules.{i} takes it from {rule.take!r}" if take else ""
        return Decision(method, take, skip, reason)

    def _vary(self, method: MergeMethod, i: int, tensor: str) -> MergeMethod:
        """The method with the settings of rule i, which may fit the recipe's and not what earlier rules made of it."""
        key = id(method), i  # of the recipe or made here, so it lives as long as this
        if key not in self._applied:
            where = f"rules.{i}"
            try:
                applied = self._recipe.rules[i].applied_to(method, where)
                self._applied[key] = applied.bind(replace(self._recipe.context, where=where))
            except RecipeError as error:
                found = f"{where}: does not fit {tensor} as the rules before it left it: {error}"
                raise RecipeError(found, where=Where(tensor=tensor)) from error
        return self._applied[key]

    def unused(self) -> list[str]:
        """The globs that matched nothing so far."""
        matched = frozenset[str]().union(*self._decided)
        return [glob for glob in self._numbers if glob not in matched]
