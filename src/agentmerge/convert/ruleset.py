"""Rules that grow case by case, tried on every sample name. Knows no methods and no weights."""

from __future__ import annotations

import re
from dataclasses import dataclass
from fnmatch import translate
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from agentmerge.convert.cases import Case

Pair = tuple["Case", "Wanted"]


@dataclass(frozen=True)
class Wanted:
    """What a tensor is merged with here."""

    settings: dict[str, float]
    skip: frozenset[str] = frozenset()
    base: bool = False
    """It is the base's."""

    def like(self, other: Wanted) -> bool:
        """Whether both give the same tensor."""
        if self.base or other.base:
            return self.base == other.base
        return self.settings == other.settings and self.skip == other.skip


@dataclass(frozen=True)
class Rule:
    """Other settings, and agents to skip, where a glob fits; or the base's tensor."""

    glob: str
    settings: dict[str, float]
    skip: frozenset[str] = frozenset()
    base: bool = False

    def applied(self, state: Wanted) -> Wanted:
        """What a tensor is merged with after this rule."""
        base = self.base or (state.base and not self.settings)
        return Wanted({**state.settings, **self.settings}, state.skip | self.skip, base)


class RuleSet:
    """The rules that give every case what it wants, from the settings that hold where no rule fits."""

    def __init__(self, start: Wanted, wanted: list[Pair]) -> None:
        """Make them, broad cases first.

        Args:
            start: the settings of the recipe.
            wanted: every case with what its tensors shall be merged with.
        """
        self._start, self._wanted = start, wanted
        self._state = self._fresh()
        self.rules: list[Rule] = []
        for case, want in wanted:
            self._add(case, want)

    def failing(self) -> Pair | None:
        """The first case that the rules do not give."""
        return next((pair for pair in self._wanted if not self._given(pair)), None)

    def join_layers(self, layers: int) -> None:
        """One rule for all the layers in place of one rule for each, where they are alike."""
        groups: dict[tuple[str, str], list[Rule]] = {}
        for rule in self.rules:
            glob = re.sub(r"^\*layers\.\d+\.", "*layers.", rule.glob)
            groups.setdefault((glob, repr((rule.settings, rule.skip, rule.base))), []).append(rule)
        before, self.rules = self.rules, []
        for (glob, _), alike in groups.items():
            first = alike[0]
            joined = [Rule(glob, first.settings, first.skip, first.base)]
            self.rules += joined if glob != first.glob and len(alike) == layers else alike
        self._state = self._fresh()
        for rule in self.rules:
            self._apply(rule)
        if self.failing() is not None:
            self.rules = before

    def _fresh(self) -> dict[str, Wanted]:
        return {tensor: self._start for case, _ in self._wanted for tensor in case.tensors}

    def _given(self, pair: Pair) -> bool:
        case, want = pair
        return all(self._state[tensor].like(want) for tensor in case.tensors)

    def _add(self, case: Case, want: Wanted) -> None:
        now = [self._state[tensor] for tensor in case.tensors] if case.parts else [self._start]
        if all(state.like(want) for state in now):
            return
        changed = {k: v for k, v in want.settings.items() if any(s.base or s.settings[k] != v for s in now)}
        skip = want.skip - frozenset.intersection(*(state.skip for state in now))
        self.rules.append(Rule(case.glob, {}, base=True) if want.base else Rule(case.glob, changed, skip))
        self._apply(self.rules[-1])

    def _apply(self, rule: Rule) -> None:
        fits = re.compile(translate(rule.glob)).match
        self._state |= {name: rule.applied(state) for name, state in self._state.items() if fits(name)}
