"""Breadcrumbs: leave out the largest changes and the smallest ones, then merge by another method.

"Model Breadcrumbs: Scaling Multi-Task Model Merging with Sparse Masks", https://arxiv.org/abs/2312.06795.

    n          = elements of a tensor (scope "model": of all merged tensors)
    kept       = int(density[t] * n)
    outliers   = min(int(gamma[t] * n), n - kept)
    low[t]     = the magnitude of rank n - outliers - kept + 1, counted from the smallest
    high[t]    = the magnitude of rank n - outliers
    tau'[t, i] = tau[t, i] where low[t] <= |tau[t, i]| <= high[t], else 0
    breadcrumbs:       base + scale * sum of weight * tau'       (`then`: task_arithmetic, scale 1)
    breadcrumbs_ties:  the sum of those that agree with the elected sign (`then`: ties, density 1, normalize false)

`rescale` multiplies tau' by what brings it back to the sum of magnitudes that the tensor had before.

Every element whose magnitude is that of a cut stays. mergekit keeps exactly `kept` elements, by the order in which its
sort leaves equal ones; the changes of agents in bfloat16 have few different magnitudes (24 to 78 in a matrix of the
golden set), so hundreds of elements can lie at a cut. Apart from those the two are equal, up to what that makes of a
rescale. The outliers are a share of *all* elements: of an agent that changed 3 % of them, gamma 0.01 takes a third of
its changes, the largest ones, and gamma 0.05 nearly everything.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, ClassVar, Literal, Self

import numpy as np
from pydantic import model_validator

from agentmerge.methods.base import Dilution, before_merging
from agentmerge.methods.cut import Cut, elements_of
from agentmerge.methods.density import Density, Shares, check_density, densities_of
from agentmerge.methods.making import Made, Making
from agentmerge.methods.trim import Trim
from agentmerge.survey.by_tensor import ByTensor
from agentmerge.survey.products import Powers
from agentmerge.survey.statistic import Survey

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from agentmerge.methods.base import Context
    from agentmerge.methods.cut import Limits
    from agentmerge.survey.answers import Histogram
    from agentmerge.survey.full.question import Energy
    from agentmerge.survey.overlap import OverlapCounts
    from agentmerge.survey.statistic import Statistic
    from agentmerge.survey.sums import TreeSums

INNER: Mapping[str, Mapping[str, Any]] = {
    "breadcrumbs": {"name": "task_arithmetic", "scale": 1.0},
    "breadcrumbs_ties": {"name": "ties", "density": 1.0, "normalize": False, "zero_sign": "plus"},
}
"""What the names wrap, unless a recipe says otherwise."""


def ranks(n: int, density: float, gamma: float) -> tuple[int, int]:
    """The ranks of the smallest and of the largest magnitude that stays; (0, 0) where nothing does."""
    kept = int(density * n)
    top = n - min(int(gamma * n), n - kept)
    return (top - kept + 1, top) if kept else (0, 0)


class Breadcrumbs(Making):
    """Another method on task vectors without their largest and smallest changes."""

    about: ClassVar[Mapping[str, str]] = {
        "breadcrumbs": "Breadcrumbs: leave out the largest and the smallest changes, then another method.",
        "breadcrumbs_ties": "The same with elected signs.",
    }

    name: Literal["breadcrumbs", "breadcrumbs_ties"] = "breadcrumbs"
    density: Density = 0.9
    """Kept fraction of each task vector; a number, or one for each agent by its name."""
    gamma: Shares = 0.01
    """Of all elements, the share of the largest changes that is left out; a number, or one for each agent."""
    scope: Literal["tensor", "model"] = "tensor"
    """Over what the magnitudes are ranked: each tensor (the paper), or the whole task vector."""
    rescale: bool = False
    """Bring what stays back to the sum of magnitudes that there was, tensor by tensor (scope model: in all)."""

    def bind(self, context: Context) -> Self:
        """A density or gamma by agent must name all of them."""
        check_density(self.density, context)
        check_density(self.gamma, context, "gamma", "the share left out")
        return super().bind(context)

    def needs(self, survey: Survey) -> tuple[Statistic[Any], ...]:
        """The cuts, the two lower halves of which are one pass; then what they leave."""
        asked = dict.fromkeys(question for cut in self._cuts for question in cut.ask(survey))
        if asked or not self.rescale:
            return tuple(asked)
        sums = (Powers(1), Made(Powers(1), self._bounds(survey)))
        return tuple(question for question in sums if not survey.knows(question))

    def maker(self, survey: Survey) -> Trim:
        """The bounds, made once."""
        return survey.derived((self, "maker"), lambda: self._made(survey))

    @property
    def loops(self) -> tuple[str, ...]:
        """The inner method's, and what trims."""
        return (*self.then.loops, "trim")

    def dilution(self, names: Sequence[str], counts: OverlapCounts, energy: Energy) -> Dilution:
        """What stays of changes of many different sizes, times what the inner method makes of it."""
        inner, n = super().dilution(names, counts, energy), counts.elements
        if self.rescale or not n or before_merging(self.then.ask(Survey())):
            return Dilution.unknown(len(names), "depends on the sizes of the changes")
        changed, agents = np.array(counts.changed, float), len(names)
        both = zip(densities_of(self.density, agents), densities_of(self.gamma, agents), strict=True)
        bounds = np.array([ranks(n, density, gamma) for density, gamma in both], float)
        first, last = np.maximum(bounds[:, 0], n - changed + 1), bounds[:, 1]
        kept = np.maximum(last - first + 1, 0) / changed
        note = f"mean over changed elements; {self.then.name} where they stay, else 0"
        return Dilution(kept * inner.multiplier, np.full(agents, np.nan), note)

    @property
    def _cuts(self) -> tuple[Cut, Cut]:
        def at(bound: int) -> Cut:
            def rank(t: int, high: Histogram) -> int:
                density, gamma = (densities_of(given, t + 1)[t] for given in (self.density, self.gamma))
                return ranks(elements_of(high), density, gamma)[bound]

            return Cut(self.scope == "tensor", rank)

        return at(0), at(1)

    def _bounds(self, survey: Survey) -> Trim:
        return survey.derived((self, "bounds"), lambda: self._bounded(survey))

    def _bounded(self, survey: Survey) -> Trim:
        low, high = self._cuts
        return Trim(low.limits(survey), high.limits(survey))

    def _made(self, survey: Survey) -> Trim:
        bounds = self._bounds(survey)
        if not self.rescale:
            return bounds
        before, after = survey.total(Powers(1)), survey.total(Made(Powers(1), bounds))
        return Trim(bounds.low, bounds.high, factors(before, after, bounds.low))

    @model_validator(mode="before")
    @classmethod
    def _default(cls, data: Any) -> Any:
        if not isinstance(data, dict):
            return data
        return {"then": dict(INNER[data.get("name", "breadcrumbs")]), **data}


def factors(before: TreeSums, after: TreeSums, places: Iterable[str]) -> Limits:
    """The sum of magnitudes before, by that after, at each place; 1 where nothing is left."""
    found: dict[str, list[float]] = {}
    for place in places:
        was, now = (sums.of(place).total() if place else sums.total() for sums in (before, after))
        known = (now > 0) & np.isfinite(was)
        found[place] = np.where(known, was / np.where(known, now, 1), 1.0).tolist()
    return ByTensor(found)
