"""RAM, RAM+ and RAM+s: average what agents share, keep what is unique, rescale it.

"Behavior Knowledge Merge in Reinforced Agentic Models", https://arxiv.org/abs/2601.13572, sections 4.1 to 4.3.

    tau[t]    = agent[t] - base
    c[i]      = number of agents t with |tau[t, i]| > threshold
    rho[t]    = shared[t] / unique[t]                                    the overlap-unique ratio
    lambda[t] = 1 + rescale * clip(rho[t], 0, clip)                      linear; the paper's r and alpha
    lambda[t] = 1 + rescale * shared[t] / (shared[t] + unique[t])        soft
    merged[i] = base[i]                                                  c[i] = 0
              = base[i] + lambda[t] * tau[t, i]                          c[i] = 1, changed by t
              = base[i] + (sum of tau[t, i] over the agents that changed it) / c[i]      c[i] >= 2

Beyond the paper, all off by default: `shared` and `shared_power` (see ram_shared.py), the agents' weights (tau becomes
weight * tau after the threshold test), `top`, by which only the share of the largest changes counts, as Breadcrumbs
without outliers would leave it (breadcrumbs.py; Localize-and-Stitch, arXiv 2408.13656, stitches by such a mask), and
rescale "auto", which solves the paper's equation 5 with measured energies (see ram_energies.py) instead of a guessed r:

    lambda[t] = 1 + (E_shared[t] - P_shared[t]) / E_unique[t], at most `bound`

so that the merge keeps <merged - base, tau[t]> = <tau[t], tau[t]> over the changed elements of every agent that has
unique ones. That is the preset `ram_plus_auto`; docs/evidence.md says what speaks for it.

Where public codes disagree: the authors' script clips rho at 1 (rescale 0.2, clip 1.0 at its README setting) and
divides by zero when an agent has no unique element (here rho is then +inf, so the clip); mergekit's `ramplus_tl`
takes rho per tensor (scope "tensor") and clips it at 0.2 by default, the paper at 2.0 over the whole model.
"""

from __future__ import annotations

from functools import lru_cache
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Literal, Self

import numpy as np
from pydantic import Field, model_validator

from agentmerge.errors import RecipeError, Where
from agentmerge.kernels import Kernel, formulas
from agentmerge.methods.base import Dilution, Selecting, Told, added
from agentmerge.methods.breadcrumbs import Breadcrumbs
from agentmerge.methods.density import Density, check_density
from agentmerge.methods.ram_energies import Energies, balanced_scales, scales_from
from agentmerge.methods.ram_shared import Shared, shared_settings, shared_update
from agentmerge.survey.overlap import OverlapCounts, changed_mask
from agentmerge.survey.retention import StoredRetention, mean_retention, retentions, undone
from agentmerge.survey.sums import TreeSums
from agentmerge.tensors import as_float32

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence

    from agentmerge.methods.base import Context
    from agentmerge.survey.full.question import Energy
    from agentmerge.survey.statistic import Foldable, Statistic, Survey
    from agentmerge.tensors import Array, Stack

CLIP = 2.0
"""The paper's alpha."""


def linear_scales(counts: OverlapCounts, rescale: float, clip: float) -> tuple[float, ...]:
    """lambda[t] = 1 + rescale * clip(rho[t], 0, clip), float64; rounded to float32 once when it is applied."""
    return tuple(1 + rescale * min(ratio, clip) for ratio in counts.ratio)


def soft_scales(counts: OverlapCounts, rescale: float) -> tuple[float, ...]:
    """lambda[t] = 1 + rescale * shared[t] / (shared[t] + unique[t]), float64; 1 where the agent changed nothing."""
    pairs = zip(counts.shared, counts.changed, strict=True)
    return tuple(1 + rescale * (shared / changed if changed else 0.0) for shared, changed in pairs)


def merged_by_ram(stack: Stack, threshold: float, scale: Array, shared_by: Callable[[Array, Array], Array]) -> Array:
    """The three cases of the file's head, float32 [n]; sums run over the agents in sorted-name order.

    Args:
        stack: base, agents and their weights.
        threshold: beyond which an element is changed.
        scale: lambda, float32 [agents]; where it and the weight are 1, an agent's own value is taken.
        shared_by: gives a shared element's update from updates float32 and changed bool, [agents, n] each.
    """
    base, tau, weight = as_float32(stack.base), stack.task_vectors(), stack.weight()
    changed, updates = changed_mask(tau, threshold), weight[:, None] * tau
    count, unique = changed.sum(axis=0), base
    for t in range(len(stack.agents)):
        own = stack.values(t) if scale[t] == 1 and weight[t] == 1 else added(base, scale[t] * updates[t])
        unique = np.where(changed[t], own, unique)
    return np.where(count == 0, base, np.where(count == 1, unique, added(base, shared_by(updates, changed))))


def mean_of_changes(updates: Array, changed: Array) -> Array:
    """(sum of tau[t, i] over the agents that changed it) / c[i], float32 [n]; 0 where c is 0."""
    total = np.zeros(updates.shape[1], np.float32)
    for update, taken in zip(updates, changed, strict=True):
        total += np.where(taken, update, np.float32(0))
    count: Array = np.maximum(changed.sum(axis=0), 1).astype(np.float32)
    return total / count


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
        "ram_plus_auto": "RAM+ that measures how much to amplify, so that each agent keeps its change.",
    }
    aliases: ClassVar[Mapping[str, str]] = {
        "ram+": "ram_plus",
        "ram+s": "ram_plus_soft",
        "ram+auto": "ram_plus_auto",
    }

    name: Literal["ram", "ram_plus", "ram_plus_soft", "ram_plus_auto"] = "ram_plus"
    rescale: Annotated[float, Field(ge=0)] | Literal["auto"] = 0.1
    """r: how much a unique element is amplified per unit of the overlap-unique ratio; "auto" measures it instead."""
    clip: float = Field(default=CLIP, ge=0)
    """alpha: the largest overlap-unique ratio that counts; the soft curve and "auto" need none."""
    curve: Literal["linear", "soft"] = "linear"
    """linear: rescale * min(rho, clip). soft: rescale * shared / changed."""
    scope: Literal["model", "tensor"] = "model"
    """Where ratio and energies are taken: over all merged elements (the paper), or tensor by tensor (ramplus_tl)."""
    shared: Shared = "mean"
    """What a shared element gets: the mean of the changes (the paper), their sum, the mean of those that agree with
    the sign of the sum (elect), the mean weighted by importance, the most important one (winner), or the largest."""
    shared_power: float = Field(default=1.0, ge=0, le=1)
    """A mean divides by c^shared_power: 1 is RAM, 0 the sum."""
    bound: float | None = Field(default=None, ge=0)
    """The largest lambda of rescale "auto"; null for none."""
    retention: float = Field(default=1.0, gt=0)
    """What rescale "auto" aims at: each agent's <merged - base, tau> / <tau, tau>, before the output cast."""
    top: Density | None = None
    """Of each task vector, the share of the largest magnitudes that counts as changed, where it is beyond the threshold
    too; a number, or one for each agent by its name. null: the threshold alone."""
    top_scope: Literal["model", "tensor"] = "model"
    """Over what the magnitudes are ranked."""

    @property
    def reads(self) -> tuple[Literal["importance"], ...]:
        """The importance, where it weighs the shared elements."""
        return ("importance",) if self.shared in ("importance", "winner") else ()

    def bind(self, context: Context) -> Self:
        """A share by agent must name all of them."""
        if self.top is not None:
            check_density(self.top, context, "top", "the share that counts")
        return self

    def ask(self, survey: Survey) -> tuple[Foldable[Any], ...]:
        """The overlap counts or the energies; nothing where nothing is rescaled. Of a measured scale what is stored."""
        if self.top is not None:
            return _topped(self).ask(survey)
        asked = () if self._asks is None or survey.knows(self._asks) else (self._asks,)
        return (*asked, StoredRetention()) if self.rescale == "auto" else asked

    def merge(self, stack: Stack, survey: Survey) -> Array:
        """The definition, float32 [n]."""
        if self.top is not None:
            return _topped(self).merge(stack, survey)

        def other(updates: Array, changed: Array) -> Array:
            return shared_update(stack, updates, changed, self.shared, self.shared_power)

        return merged_by_ram(
            stack, self.threshold, self._scales_at(stack, survey), mean_of_changes if self._takes_means else other
        )

    @property
    def loops(self) -> tuple[str, ...]:
        """See MergeMethod.loops."""
        if self.top is not None:
            return ("ram_extended", "trim")
        return ("ram" if self._takes_means else "ram_extended",)

    def kernel(self, stack: Stack, survey: Survey) -> Iterable[Kernel] | None:
        """The same in one compiled pass; the paper's has a loop of its own, where the task vectors are the agents'."""
        if self.top is not None:
            return _topped(self).kernel(stack, survey)
        scale = self._scales_at(stack, survey)
        if self._takes_means and stack.tau is None:
            return (Kernel("ram", formulas.Ram(self.threshold, scale, stack.weight()), stack),)
        shared = shared_settings(stack, self.shared, self.shared_power)
        settings = formulas.RamExtended(self.threshold, scale, shared)
        return (Kernel("ram_extended", settings, stack, stack.extra.get("importance", ())),)

    def told(self, survey: Survey, names: tuple[str, ...]) -> Told:
        """Lambda over the whole model; none where every tensor has its own."""
        if self.top is not None:
            return _topped(self).told(survey, names)
        if self._asks is None:
            return Told(scales=(1.0,) * len(names))
        if self.scope == "tensor" or not survey.knows(self._asks):
            return Told()
        scales = self._measured(survey.total(self._asks))
        if self.rescale != "auto" or not survey.knows(StoredRetention()):
            return Told(scales=scales)
        stored = retentions(survey.total(StoredRetention()))
        learned = {"retention": {"stored": dict(zip(names, stored, strict=True))}}
        notes = undone(self.name, mean_retention(stored), self.retention) if self.bound is None else []
        return Told(scales, learned, tuple(notes))

    def scales(self, counts: OverlapCounts) -> tuple[float, ...]:
        """lambda[t] of a numeric rescale, float64."""
        if self.curve == "soft":
            return soft_scales(counts, float(self.rescale))
        return linear_scales(counts, float(self.rescale), self.clip)

    def dilution(self, names: Sequence[str], counts: OverlapCounts, energy: Energy) -> Dilution:
        """Lambda, and what of the energy is kept: all of lambda * unique, and of shared what the mean leaves."""
        if self.top is not None:
            return _topped(self).dilution(names, counts, energy)
        unknown = np.full(len(names), np.nan)
        if self.rescale == "auto":
            note = "makes up in unique elements for what the mean takes from shared ones"
            scale = np.array(balanced_scales(energy.unique, energy.shared, energy.kept, self.bound, self.retention))
            scale = scale if self._takes_means else unknown
        else:
            note, scale = self._scale_in_words(), np.array(self.scales(counts))
        if self.scope == "tensor" and self._asks is not None:
            scale = unknown
        kept = energy.kept if self._takes_means else unknown
        return Dilution(scale, (scale * energy.unique + kept) / (energy.unique + energy.shared), note)

    def _scale_in_words(self) -> str:
        if self.rescale == 0:
            return "unique changes whole, shared ones averaged"
        curve = "shared / changed" if self.curve == "soft" else f"min(rho, {self.clip:g})"
        return f"1 + {self.rescale:g} * {curve}"

    @model_validator(mode="after")
    def _fits(self) -> Self:
        if self.shared_power != 1 and self.shared not in ("mean", "elect"):
            raise RecipeError(
                f"shared_power: has no meaning with shared '{self.shared}', which divides by no count.",
                where=Where(path="shared_power"),
            )
        if self.retention != 1 and self.rescale != "auto":
            raise RecipeError(
                "retention: what rescale 'auto' aims at; a numeric rescale aims at none.", where=Where(path="retention")
            )
        if self.bound is not None and self.rescale != "auto":
            raise RecipeError(
                "bound: limits rescale 'auto' only; a numeric rescale is limited by clip.", where=Where(path="bound")
            )
        return self

    @property
    def _takes_means(self) -> bool:
        """Whether a shared element gets what the paper says."""
        return self.shared == "mean" and self.shared_power == 1

    @property
    def _asks(self) -> Statistic[Any] | None:
        """What lambda comes from; None where it is 1."""
        if self.rescale == "auto":
            return Energies(self.threshold, self.shared, self.shared_power)
        return None if self.rescale == 0 else self.overlap

    def _measured(self, answer: OverlapCounts | TreeSums) -> tuple[float, ...]:
        return scales_from(answer, self.bound, self.retention) if isinstance(answer, TreeSums) else self.scales(answer)

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


@lru_cache
def _topped(method: Ram) -> Breadcrumbs:
    """The same method on task vectors that hold nothing but what counts."""
    plain = method.model_copy(update={"top": None})
    return Breadcrumbs(density=method.top or 1.0, gamma=0.0, scope=method.top_scope, then=plain)
