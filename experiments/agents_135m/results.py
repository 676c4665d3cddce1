"""Read what sweep.py saved and compute scores, paired errors and choices from it. Draws nothing.

Scores are in % of right answers, means over sub-tasks; a difference is of the same prompts, and its error is that of
the mean of the paired differences. Of several seeds: the mean of their values, with the errors of their prompts.
"""

from __future__ import annotations

import json
import math
import re
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from plans import key, tuned_means
from rules import TUNED
from saved import RESULTS, name_of, own_mean, unpacked
from sets import domains_of

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence


SEED = re.compile(r"([a-z0-9]+-)?seed\d+")
"""Of the results' files: seed4, gemma3-seed1; others are copies that were put aside."""


@dataclass(frozen=True)
class Value:
    """A mean with its standard error."""

    mean: float
    error: float

    def __str__(self) -> str:
        return f"{self.mean:.1f} ± {self.error:.1f}"

    @property
    def signed(self) -> str:
        """As a difference."""
        return f"{self.mean:+.1f} ± {self.error:.1f}"


@dataclass(frozen=True)
class Seed:
    """One seed's base, agents and merges."""

    data: dict[str, Any]

    @property
    def number(self) -> int:
        """Its number."""
        return int(self.data["seed"])

    @property
    def name(self) -> int | str:
        """What a registration calls it."""
        return name_of(self.data.get("architecture", "llama"), self.number)

    def has(self, name: str, split: str = "test", domains: Iterable[str] = ()) -> bool:
        """Whether a model, or a merge by its key, was scored, on these domains at least."""
        bits = self._entry(name).get(split)
        return bits is not None and {task.split("/")[0] for task in bits}.issuperset(domains)

    def _entry(self, name: str) -> dict[str, Any]:
        return self.data["models"].get(name) or self.data["merges"].get(name, {})

    def right(self, name: str, domains: Iterable[str], split: str = "test") -> dict[str, np.ndarray]:
        """Right answers by sub-task."""
        count, wanted = self.data["count"][split], set(domains)
        bits = self._entry(name)[split]
        return {task: unpacked(text, count) for task, text in bits.items() if task.split("/")[0] in wanted}

    def mean(self, name: str, domains: Iterable[str], split: str = "test", against: str | None = None) -> Value:
        """Mean over the sub-tasks of these domains, or its difference to another model's on the same prompts."""
        wanted = (name, tuple(domains), split, against)
        if wanted not in self._known_means:
            self._known_means[wanted] = self._mean(*wanted)
        return self._known_means[wanted]

    @cached_property
    def _known_means(self) -> dict[tuple[Any, ...], Value]:
        return {}

    @cached_property
    def _known_choices(self) -> dict[tuple[str, str], str | None]:
        return {}

    def _mean(self, name: str, domains: tuple[str, ...], split: str, against: str | None) -> Value:
        mine = self.right(name, domains, split)
        other = self.right(against, domains, split) if against else {}
        gaps = [bits.astype(float) - (other[task] if against else 0) for task, bits in mine.items()]
        error = math.sqrt(sum(float(gap.var(ddof=1)) / gap.size for gap in gaps)) / len(gaps)
        return Value(100 * float(np.mean([gap.mean() for gap in gaps])), 100 * error)

    @cached_property
    def dev_means(self) -> dict[str, float]:
        """Mean over the sub-tasks of the set's own domains on dev, by key of the merges that were scored there."""
        merges = self.data["merges"].items()
        return {name: own_mean(entry, "dev", self.data["count"]) for name, entry in merges if "dev" in entry}

    def chosen(self, family: str, name: str) -> str | None:
        """The key of a family's setting that dev chose for a set; none where it has no score on test."""
        if (family, name) not in self._known_choices:
            self._known_choices[family, name] = self._chosen(family, name)
        return self._known_choices[family, name]

    def _chosen(self, family: str, name: str) -> str | None:
        scored = tuned_means(TUNED[family], name, self.dev_means)
        if not scored:
            return None
        best = max(scored, key=lambda value: scored[value])
        found = key(TUNED[family].rule(best).label, name)
        return found if self.has(found) else None

    def baseline(self, families: Sequence[str], name: str) -> str | None:
        """The key of the best of these families, all of it chosen on dev; none where one of them lacks."""
        keys = [self.chosen(family, name) for family in families]
        there = [one for one in keys if one is not None]
        return max(there, key=lambda one: self.dev_means[one]) if len(there) == len(keys) else None

    def strongest(self, families: Sequence[str], name: str) -> str | None:
        """The same, but the better one on test itself: a baseline that nobody could have chosen."""
        keys = [self.chosen(family, name) for family in families]
        there = [one for one in keys if one is not None]
        return max(there, key=lambda one: self.mean(one, domains_of(name)).mean) if len(there) == len(keys) else None

    def gap(
        self, label: str, families: Sequence[str], name: str, output: str = "stochastic", *, strong: bool = True
    ) -> Value | None:
        """A rule less the tuned baseline of a set, on test; none where either lacks.

        Args:
            label: of the rule.
            families: each tuned on dev.
            name: of the set.
            output: how the rule's merge is stored; the baselines are rounded stochastically.
            strong: against the better family on test, which is harder; else against the better one on dev.
        """
        rule = key(label, name, output)
        against = self.strongest(families, name) if strong else self.baseline(families, name)
        return self.mean(rule, domains_of(name), against=against) if against and self.has(rule) else None

    def dev_gap(self, label: str, families: Sequence[str], name: str) -> Value | None:
        """The same on dev, where the baseline was chosen, too."""
        rule, against = key(label, name), self.baseline(families, name)
        there = against and self.has(rule, "dev")
        return self.mean(rule, domains_of(name), "dev", against) if there else None


def read_seeds(folder: Path = RESULTS) -> list[Seed]:
    """All that were saved, by number, those of other architectures behind them by name."""
    paths = [path for path in folder.glob("*.json") if SEED.fullmatch(path.stem)]
    found = [Seed(json.loads(path.read_text())) for path in paths]
    return sorted(found, key=lambda seed: (seed.name != seed.number, str(seed.name), seed.number))


def over(seeds: Sequence[Seed], value: Callable[[Seed], Value | None]) -> Value | None:
    """The mean over the seeds; none where one of them lacks it."""
    found = [value(seed) for seed in seeds]
    there = [one for one in found if one is not None]
    return average(there) if there and len(there) == len(found) else None


def average(values: Sequence[Value]) -> Value:
    """Mean of independent values."""
    error = math.sqrt(sum(one.error**2 for one in values)) / len(values)
    return Value(sum(one.mean for one in values) / len(values), error)
