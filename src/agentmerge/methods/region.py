"""Keep one region of one agent's changes: the ablation of figure 3.

"Behavior Knowledge Merge in Reinforced Agentic Models", https://arxiv.org/abs/2601.13572, section 3 and figure 3.

    merged[i] = base[i] + factor * tau[t, i]     where i lies in the region of agent t
              = base[i]                          elsewhere

unique: only agent t changed it. shared: agent t and another did. changed: either. `factor` 1 / N dilutes the region as
averaging N agents does. At factor 1 the agent's own value is taken.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar, Literal, Self

import numpy as np

from agentmerge.errors import RecipeError, Where, did_you_mean
from agentmerge.kernels import Kernel, formulas
from agentmerge.kernels.formulas import CHANGED, SHARED, UNIQUE
from agentmerge.methods.base import Context, Dilution, Selecting, added
from agentmerge.survey.overlap import changed_mask
from agentmerge.tensors import as_float32

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from agentmerge.survey.full.question import Energy
    from agentmerge.survey.overlap import OverlapCounts
    from agentmerge.survey.statistic import Survey
    from agentmerge.tensors import Array, Stack


class Region(Selecting):
    """The base with one region of one agent's changes."""

    about: ClassVar[Mapping[str, str]] = {"region": "An ablation: one agent's unique, shared or changed elements only."}

    name: Literal["region"] = "region"
    agent: str = ""
    """Whose changes; required."""
    keep: Literal["unique", "shared", "changed"] = "unique"
    """Which of them."""
    factor: float = 1.0
    """Multiplies them."""

    def bind(self, context: Context) -> Self:
        """The agent must be one of the recipe's."""
        if self.agent not in context.weights:
            hint = did_you_mean(self.agent, context.weights).strip()
            path = f"{context.where}.agent"
            raise RecipeError(f"{path}: no agent '{self.agent}'", todo=hint, where=Where(path=path))
        return self

    def merge(self, stack: Stack, survey: Survey) -> Array:
        """The definition, float32 [n]."""
        t, base, tau = stack.names.index(self.agent), as_float32(stack.base), stack.task_vectors()
        changed = changed_mask(tau, self.threshold)
        count = changed.sum(axis=0)
        region = changed[t] & {"unique": count == 1, "shared": count >= 2, "changed": count >= 1}[self.keep]
        value = stack.values(t) if self.factor == 1 else added(base, np.float32(self.factor) * tau[t])
        return np.where(region, value, base)

    @property
    def loops(self) -> tuple[str, ...]:
        """See MergeMethod.loops."""
        return ("region",)

    def kernel(self, stack: Stack, survey: Survey) -> Iterable[Kernel] | None:
        """The same in one compiled pass."""
        keep = {"unique": UNIQUE, "shared": SHARED, "changed": CHANGED}[self.keep]
        settings = formulas.Region(self.threshold, stack.names.index(self.agent), keep, self.factor)
        return (Kernel("region", settings, stack),)

    def dilution(self, names: Sequence[str], counts: OverlapCounts, energy: Energy) -> Dilution:
        """The factor for its own agent's unique elements, unless they are left out."""
        own = np.array([name == self.agent for name in names])
        multiplier = np.where(own & (self.keep != "shared"), self.factor, 0.0)
        return Dilution(multiplier, np.full(len(names), np.nan), f"{self.keep} changes of one agent")
