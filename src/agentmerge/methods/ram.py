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

Beyond the paper, all off by default: `shared` and `shared_power` (see shared.py), the agents' weights (tau becomes
weight * tau after the threshold test), and rescale "auto", which solves the paper's equation 5 with measured energies
(see energies.py) instead of a guessed r:

    lambda[t] = 1 + (E_shared[t] - P_shared[t]) / E_unique[t], at most `bound`

so that the merge keeps <merged - base, tau[t]> = <tau[t], tau[t]> over the changed elements of every agent that has
unique ones. That is the preset `ram_plus_auto`; docs/evidence.md says what speaks for it.

Where public codes disagree: the authors' script clips rho at 1 (rescale 0.2, clip 1.0 at its README setting) and
divides by zero when an agent has no unique element (here rho is then +inf, so the clip); mergekit's `ramplus_tl`
takes rho per tensor (scope "tensor") and clips it at 0.2 by default, the paper at 2.0 over the whole model.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Literal, Self

import numpy as np
from pydantic import Field, model_validator

from agentmerge.errors import RecipeError
from agentmerge.kernels import Kernel, formulas
from agentmerge.methods.base import Selecting
from agentmerge.methods.energies import Energies, scales_from
from agentmerge.methods.shared import Shared, shared_settings, shared_update
from agentmerge.survey.overlap import OverlapCounts, changed_mask
from agentmerge.survey.sums import TreeSums
from agentmerge.tensors import as_float32

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from agentmerge.survey.statistic import Statistic, Survey
    from agentmerge.tensors import Array, Stack


class Ram(Selecting):
    """Reinforced Agent Merging; `ram` is rescale 0, `ram_plus` the paper's default, `ram_plus_soft` its soft curve."""

    presets: ClassVar[Mapping[str, Mapping[str, Any]]] = {
        "ram": {"rescale": 0.0},
        "ram_plus": {},
        "ram_plus_soft": {"curve": "soft"},
        "ram_plus_auto": {"rescale": "auto"},
    }
    about: ClassVar[Mapping[str, str]] = {
        "ram": "RAM: average what agents share, keep what is unique.",
        "ram_plus": "RAM+: the same, unique elements amplified by each agent's overlap-unique ratio.",
        "ram_plus_soft": "RAM+s: the same, amplified by the shared fraction of each agent's changes.",
        "ram_plus_auto": "RAM+ that measures how much to amplify: the recommended one where nothing can be tuned.",
    }
    aliases: ClassVar[Mapping[str, str]] = {
        "ram+": "ram_plus",
        "ram+s": "ram_plus_soft",
        "ram+auto": "ram_plus_auto",
    }

    name: Literal["ram", "ram_plus", "ram_plus_soft", "ram_plus_auto"] = "ram_plus"
    rescale: Annotated[float, Field(ge=0)] | Literal["auto"] = 0.1
    """r: how much a unique element is amplified per unit of the overlap-unique ratio; "auto" measures it instead."""
    clip: float = Field(default=2.0, ge=0)
    """alpha: the largest overlap-unique ratio that counts; the soft curve and "auto" need none."""
    curve: Literal["linear", "soft"] = "linear"
    """linear: rescale * min(rho, clip). soft: rescale * shared / changed."""
    scope: Literal["model", "tensor"] = "model"
    """Where ratio and energies are taken: over all merged elements (the paper), or tensor by tensor (ramplus_tl)."""
    shared: Shared = "mean"
    """What a shared element gets: the mean of the changes (the paper), their sum, the mean of those that agree with
    the sign of the sum (elect), or the mean weighted by importance."""
    shared_power: float = Field(default=1.0, ge=0, le=1)
    """A mean divides by c^shared_power: 1 is RAM, 0 the sum."""
    bound: float | None = Field(default=None, ge=0)
    """The largest lambda of rescale "auto"; null for none."""

    @model_validator(mode="after")
    def _fits(self) -> Self:
        if self.shared_power != 1 and self.shared not in ("mean", "elect"):
            raise RecipeError(f"shared_power: has no meaning with shared '{self.shared}', which divides by no count.")
        if self.bound is not None and self.rescale != "auto":
            raise RecipeError("bound: limits rescale 'auto' only; a numeric rescale is limited by clip.")
        return self

    @property
    def reads(self) -> tuple[str, ...]:
        """The importance, where it weighs the shared elements."""
        return ("importance",) if self.shared == "importance" else ()

    @property
    def _asks(self) -> Statistic[Any] | None:
        if self.rescale == "auto":
            return Energies(self.threshold, self.shared, self.shared_power)
        return None if self.rescale == 0 else self.overlap

    def ask(self, survey: Survey) -> tuple[Statistic[Any], ...]:
        """The overlap counts or the energies; nothing where nothing is rescaled."""
        return () if self._asks is None or survey.knows(self._asks) else (self._asks,)

    def scales(self, counts: OverlapCounts) -> tuple[float, ...]:
        """lambda[t] of a numeric rescale, float64; rounded to float32 once when it is applied."""
        rescale = float(self.rescale)
        if self.curve == "soft":
            pairs = zip(counts.shared, counts.changed, strict=True)
            return tuple(1 + rescale * (shared / changed if changed else 0.0) for shared, changed in pairs)
        return tuple(1 + rescale * min(ratio, self.clip) for ratio in counts.ratio)

    def merge(self, stack: Stack, survey: Survey) -> Array:
        """The definition, float32 [n]; sums run over the agents in sorted-name order."""
        scale, weight = self._scales_at(stack, survey), stack.weight()
        base, tau = as_float32(stack.base), stack.task_vectors()
        changed, updates = changed_mask(tau, self.threshold), weight[:, None] * tau
        count, single = changed.sum(axis=0), base
        for t in range(len(stack.agents)):
            own = stack.values(t) if scale[t] == 1 and weight[t] == 1 else base + scale[t] * updates[t]
            single = np.where(changed[t], own, single)
        shared = base + shared_update(stack, updates, changed, self.shared, self.shared_power)
        return np.where(count == 0, base, np.where(count == 1, single, shared))

    @property
    def _is_papers(self) -> bool:
        return self.shared == "mean" and self.shared_power == 1

    @property
    def loops(self) -> tuple[str, ...]:
        """See MergeMethod.loops."""
        return ("ram" if self._is_papers else "ram_extended",)

    def kernel(self, stack: Stack, survey: Survey) -> Iterable[Kernel] | None:
        """The same in one compiled pass; the paper's has a loop of its own, where the task vectors are the agents'."""
        scale = self._scales_at(stack, survey)
        if self._is_papers and stack.tau is None:
            return (Kernel("ram", formulas.Ram(self.threshold, scale, stack.weight()), stack),)
        shared = shared_settings(stack, self.shared, self.shared_power)
        settings = formulas.RamExtended(self.threshold, scale, shared)
        return (Kernel("ram_extended", settings, stack, stack.extra.get("importance", ())),)

    def agent_scales(self, survey: Survey) -> tuple[float, ...] | None:
        """lambda[t] over the whole model; None where every tensor has its own."""
        if self._asks is None:
            return (1.0,) * len(survey.total(self.overlap).exactly)
        return None if self.scope == "tensor" else self._measured(survey.total(self._asks))

    def _measured(self, answer: OverlapCounts | TreeSums) -> tuple[float, ...]:
        return scales_from(answer, self.bound) if isinstance(answer, TreeSums) else self.scales(answer)

    def _scales_at(self, stack: Stack, survey: Survey) -> Array:
        if self._asks is None:
            return np.ones(len(stack.agents), np.float32)
        tensor = stack.block.tensor.name if self.scope == "tensor" else ""
        return survey.derived((self, tensor), lambda: self._scales_of(tensor, survey))

    def _scales_of(self, tensor: str, survey: Survey) -> Array:
        """Lambda of one tensor, or of the model for ""; float32 [agents]."""
        asks = self._asks
        assert asks is not None
        if isinstance(asks, Energies):
            sums = survey.total(asks)
            return np.array(self._measured(sums.of(tensor) if tensor else sums), np.float32)
        return np.array(self._measured(survey.at(tensor, asks) if tensor else survey.total(asks)), np.float32)
