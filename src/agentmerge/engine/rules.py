"""What the recipe's rules say of each tensor. Knows names only."""

from __future__ import annotations

from dataclasses import dataclass, replace
from fnmatch import fnmatchcase
from typing import TYPE_CHECKING

from agentmerge.errors import RecipeError, Where

if TYPE_CHECKING:
    from agentmerge.methods.base import MergeMethod
    from agentmerge.recipe import Recipe
    from agentmerge.rule import Rule


@dataclass(frozen=True, slots=True)
class Decision:
    """The method of one tensor, or where to take it from."""

    method: MergeMethod
    take: str | None
    skip: frozenset[str]
    reason: str


class Rules:
    """The rules of one recipe; later rules win, setting by setting."""

    def __init__(self, recipe: Recipe) -> None:
        self._recipe = recipe
        self._matched: set[int] = set()

    def decide(self, tensor: str) -> Decision:
        """Apply every matching rule in order; `skip` adds up, a rule with settings ends an earlier `take`."""
        method, take, skip, reason = self._recipe.method, None, frozenset[str](), ""
        for i, rule in enumerate(self._recipe.rules):
            if not fnmatchcase(tensor, rule.tensors):
                continue
            self._matched.add(i)
            method = self._applied(rule, i, method, tensor)
            skip |= frozenset(rule.skip)
            if rule.take is not None or rule.settings:
                take = rule.take
                reason = f"rules.{i} takes it from {rule.take!r}" if take else ""
        return Decision(method, take, skip, reason)

    def _applied(self, rule: Rule, i: int, method: MergeMethod, tensor: str) -> MergeMethod:
        """A rule that fits the recipe's method may not fit what an earlier one made of it: another inner method."""
        try:
            return rule.applied_to(method, f"rules.{i}").bind(replace(self._recipe.context, where=f"rules.{i}"))
        except RecipeError as error:
            found = f"rules.{i}: does not fit {tensor} as the rules before it left it: {error}"
            raise RecipeError(found, where=Where(tensor=tensor)) from error

    def unused(self) -> list[str]:
        """The globs that matched nothing so far."""
        return [rule.tensors for i, rule in enumerate(self._recipe.rules) if i not in self._matched]
