"""RAM, RAM+ and RAM+s: average what agents share, keep what is unique, rescale it. Knows no files.

"Behavior Knowledge Merge in Reinforced Agentic Models", https://arxiv.org/abs/2601.13572, sections 4.1 to 4.3.

    tau[t]    = agent[t] - base
    c[i]      = number of agents t with |tau[t, i]| > threshold
    rho[t]    = shared[t] / unique[t]                                    the overlap-unique ratio
    lambda[t] = 1 + rescale * clip(rho[t], 0, clip)                      linear; the paper's r and alpha
    lambda[t] = 1 + rescale * shared[t] / (shared[t] + unique[t])        soft
    merged[i] = base[i]                                                  c[i] = 0
              = base[i] + lambda[t] * tau[t, i]                          c[i] = 1, changed by t
              = base[i] + (sum of tau[t, i] over the agents that changed it) / c[i]      c[i] >= 2

Where public codes disagree: the authors' script clips rho at 1 (rescale 0.2, clip 1.0 at its README setting) and
divides by zero when an agent has no unique element (here rho is then +inf, so the clip); mergekit's `ramplus_tl`
takes rho per tensor (scope "tensor") and clips it at 0.2 by default, the paper at 2.0 over the whole model.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, ClassVar, Literal

import numpy as np
from pydantic import Field

from agentmerge.kernels import cpu
from agentmerge.methods.base import MergeMethod
from agentmerge.survey.overlap import OverlapCounts, changed_mask
from agentmerge.survey.rounding import RoundingCounts
from agentmerge.tensors import as_float32

if TYPE_CHECKING:
    from collections.abc import Mapping

    from agentmerge.survey.statistic import Statistic, Survey
    from agentmerge.tensors import Array, Cast, Stack


class Ram(MergeMethod):
    """Reinforced Agent Merging; `ram` is rescale 0, `ram_plus` the paper's default, `ram_plus_soft` its soft curve."""

    presets: ClassVar[Mapping[str, Mapping[str, Any]]] = {
        "ram": {"rescale": 0.0},
        "ram_plus": {},
        "ram_plus_soft": {"curve": "soft"},
    }
    about: ClassVar[Mapping[str, str]] = {
        "ram": "RAM: average what agents share, keep what is unique.",
        "ram_plus": "RAM+: the same, unique elements amplified by each agent's overlap-unique ratio.",
        "ram_plus_soft": "RAM+s: the same, amplified by the shared fraction of each agent's changes.",
    }
    aliases: ClassVar[Mapping[str, str]] = {"ram+": "ram_plus", "ram+s": "ram_plus_soft"}

    name: Literal["ram", "ram_plus", "ram_plus_soft"] = "ram_plus"
    rescale: float = Field(default=0.1, ge=0)
    """r: how much a unique element is amplified per unit of the overlap-unique ratio."""
    clip: float = Field(default=2.0, ge=0)
    """alpha: the largest overlap-unique ratio that counts; the soft curve needs none."""
    curve: Literal["linear", "soft"] = "linear"
    """linear: rescale * min(rho, clip). soft: rescale * shared / changed."""
    scope: Literal["model", "tensor"] = "model"
    """Where the ratio is counted: over all merged elements (the paper), or tensor by tensor (ramplus_tl)."""

    def ask(self, survey: Survey) -> tuple[Statistic[Any], ...]:
        """The overlap counts, unless nothing is rescaled."""
        return () if self.rescale == 0 or survey.knows(self.overlap) else (self.overlap,)

    def scales(self, counts: OverlapCounts) -> tuple[float, ...]:
        """lambda[t] of every agent, float64; rounded to float32 once when it is applied."""
        if self.curve == "soft":
            pairs = zip(counts.shared, counts.changed, strict=True)
            return tuple(1 + self.rescale * (shared / changed if changed else 0.0) for shared, changed in pairs)
        return tuple(1 + self.rescale * min(ratio, self.clip) for ratio in counts.ratio)

    def merge(self, stack: Stack, survey: Survey) -> Array:
        """The definition, float32 [n]; sums run over the agents in sorted-name order."""
        scale, weight = self._scales_at(stack, survey), stack.weight()
        base, tau = as_float32(stack.base), stack.task_vectors()
        changed = changed_mask(tau, self.threshold)
        count = changed.sum(axis=0).astype(np.float32)
        total, single = np.zeros_like(base), base.copy()
        for t in range(len(stack.agents)):
            update = weight[t] * tau[t]
            own = stack.values(t) if scale[t] == 1 and weight[t] == 1 else base + scale[t] * update
            total += np.where(changed[t], update, np.float32(0))
            single = np.where(changed[t], own, single)
        shared = base + total / np.maximum(count, np.float32(1))
        return np.where(count == 0, base, np.where(count == 1, single, shared))

    def fused(self, stack: Stack, survey: Survey, cast: Cast, out: Array) -> RoundingCounts | None:
        """The same in one compiled pass."""
        if stack.tau is not None or not cpu.supports(stack.base, stack.agents, cast.dtype):
            return None
        tensor, start = stack.block.tensor.name, stack.block.start
        draw = cast.key(tensor) if cast.rounding == "stochastic" else None
        scale = self._scales_at(stack, survey)
        tally = cpu.ram(stack.base, stack.agents, self.threshold, scale, stack.weight(), out, draw, start)
        return RoundingCounts(*tally)

    def agent_scales(self, survey: Survey) -> tuple[float, ...] | None:
        """lambda[t] over the whole model; None where every tensor has its own."""
        if self.rescale == 0:
            return (1.0,) * len(survey.total(self.overlap).exactly)
        return None if self.scope == "tensor" else self.scales(survey.total(self.overlap))

    def _scales_at(self, stack: Stack, survey: Survey) -> Array:
        if self.rescale == 0:
            return np.ones(len(stack.agents), np.float32)
        per_tensor = self.scope == "tensor"
        counts = survey.at(stack.block.tensor.name, self.overlap) if per_tensor else survey.total(self.overlap)
        return np.array(self.scales(counts), np.float32)
