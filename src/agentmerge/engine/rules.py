"""What the recipe's rules say of each tensor. Knows names only."""

from __future__ import annotations

from dataclasses import dataclass
from fnmatch import fnmatchcase
from typing import TYPE_CHECKING

from agentmerge.errors import Where, about

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
            with about(Where(tensor=tensor)):  # a rule before may have brought in another inner method
                method = rule.applied_to(method, f"rules.{i}").bind(self._recipe.context)
            skip |= frozenset(rule.skip)
            if rule.take is not None or rule.settings:
                take = rule.take
                reason = f"rules.{i} takes it from {rule.take!r}" if take else ""
        return Decision(method, take, skip, reason)

    def unused(self) -> list[str]:
        """The globs that matched nothing so far."""
        return [rule.tensors for i, rule in enumerate(self._recipe.rules) if i not in self._matched]
