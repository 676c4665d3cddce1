"""Read what sweep.py saved and compute scores, errors and choices from it. Draws nothing."""

from __future__ import annotations

import json
import math
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

RESULTS = Path(__file__).parent / "results"


@dataclass(frozen=True)
class Seed:
    """One seed's base, agents and merges."""

    data: dict[str, Any]

    @classmethod
    def read(cls, number: int) -> Seed:
        """results/seedN.json."""
        return cls(json.loads((RESULTS / f"seed{number}.json").read_text()))

    @property
    def number(self) -> int:
        """Its number."""
        return int(self.data["seed"])

    def right(self, name: str, split: str, domains: Iterable[str]) -> dict[str, np.ndarray]:
        """Right answers, by sub-task, of a model (`base`, `code` ...) or a merge's key."""
        entry = self.data["models"].get(name) or self.data["merges"][name]
        count, wanted = self.data["count"][split], tuple(domains)
        bits = {task: np.frombuffer(bytes.fromhex(text), np.uint8) for task, text in entry[split].items()}
        return {task: np.unpackbits(b)[:count] for task, b in bits.items() if task.split()[0] in wanted}

    def mean(self, name: str, domains: Sequence[str], split: str = "test", against: str | None = None) -> Value:
        """Mean over sub-tasks in %, or its difference to another model's on the same prompts."""
        mine = self.right(name, split, domains)
        other = self.right(against, split, domains) if against else {}
        gaps = [bits.astype(float) - (other[task] if against else 0) for task, bits in mine.items()]
        error = math.sqrt(sum(float(gap.var(ddof=1)) / gap.size for gap in gaps)) / len(gaps)
        return Value(100 * float(np.mean([gap.mean() for gap in gaps])), 100 * error)

    def has(self, label: str, agents: Sequence[str], output: str) -> bool:
        """Whether this merge was made."""
        return key(label, agents, output) in self.data["merges"]

    def best(self, labels: Iterable[str], agents: Sequence[str], output: str = "nearest") -> str:
        """The key of the setting with the best mean on dev."""
        keys = [key(label, agents, output) for label in labels if self.has(label, agents, output)]
        return max(keys, key=lambda k: self.mean(k, agents, "dev").mean)


@dataclass(frozen=True)
class Value:
    """A mean with its standard error."""

    mean: float
    error: float

    def __str__(self) -> str:
        return f"{self.mean:.1f} ± {self.error:.1f}"


def key(label: str, agents: Sequence[str], output: str) -> str:
    """A merge's name in the results."""
    return f"{label} | {'+'.join(agents)} | {output}"


def retention(seed: Seed, name: str) -> float:
    """Mean over the agents of what a stored merge kept of their changes."""
    kept = seed.data["merges"][name]["retention"].values()
    return sum(kept) / len(kept)
