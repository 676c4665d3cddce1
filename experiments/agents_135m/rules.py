"""Which methods are tried, at which settings, and what is tuned. Knows no sets and no results."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from functools import partial
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

Method = dict[str, Any]


@dataclass(frozen=True)
class Rule:
    """One way to merge a set: what a recipe says beside its sources."""

    label: str
    method: Method = field(hash=False)
    rules: tuple[dict[str, Any], ...] = field(default=(), hash=False)
    output: str = "stochastic"  # or nearest, float32
    weights: dict[str, float] = field(default_factory=dict, hash=False)
    left_out: tuple[str, ...] = ()
    gpu: bool = False  # whether it works on whole matrices
    seed: int = 0
    keep: str = ""  # of the base's Gram matrices that hold what it can do (grams.py): their name, or UNOWNED
    reads: str = ""  # what was measured on every agent's own answers: grams or importance

    @property
    def measured(self) -> bool:
        """Whether it needs anything of grams.py."""
        return bool(self.keep or self.reads)

    def stored(self, output: str) -> Rule:
        """The same, stored in another way."""
        return replace(self, output=output)


@dataclass(frozen=True)
class Family:
    """What is tuned on dev: one number, on a coarse grid first, then finer around its best, further at an edge."""

    name: str
    make: Callable[[float], Method] = field(hash=False)
    coarse: tuple[float, ...]
    step: float
    low: float
    high: float
    gpu: bool = False  # see Rule

    def rule(self, value: float) -> Rule:
        """The setting."""
        return Rule(f"{self.name} {value:g}", self.make(value), gpu=self.gpu)

    def next_values(self, scored: Mapping[float, float]) -> list[float]:
        """What to score next; nothing when the best and both its neighbours are known.

        Args:
            scored: mean on dev by value.
        """
        missing = [value for value in self.coarse if value not in scored]
        if missing:
            return missing
        best, gap = max(scored, key=lambda value: scored[value]), self.coarse[1] - self.coarse[0]
        edges = ((-1, min(scored), self.low), (1, max(scored), self.high))
        ways = [sign for sign, edge, end in edges if best == edge != end]
        outwards = [min(max(best + sign * gap, self.low), self.high) for sign in ways]
        wanted = outwards or [best - self.step, best + self.step]
        wanted = [round(value, 4) for value in wanted]
        return [value for value in wanted if self.low <= value <= self.high and value not in scored]


def around(name: str, then: Method | str, **settings: Any) -> Method:
    """A method around another."""
    return {"name": name, "then": then, **settings}


TA, TIES, RAM, AUTO = {"name": "task_arithmetic"}, {"name": "ties"}, {"name": "ram"}, {"name": "ram_plus_auto"}
CRUMBS = {"name": "breadcrumbs_ties", "gamma": 0.0}
WUDI, WUDI_AUTO, REGMEAN = {"name": "wudi", "solver": "exact"}, {"name": "wudi_auto"}, {"name": "regmean"}
WHOLE = {"keep": 1.0}  # the base counts as a whole agent; the product's default is a tenth of one
BASE, UNOWNED, UNTRAINED = "base", "unowned", "untrained"
"""Gram matrices of the base on prompts of everything, and on those of what no agent of the set was trained on: every
token counting the same, or every prompt; a set that has an agent for everything keeps nothing in the last one."""


def scaled(method: Method, key: str, value: float) -> Method:
    """With one setting at a value."""
    return {**method, key: value}


def dare(scale: float) -> Method:
    return around("dare", {**TA, "scale": scale}, density=0.5)


TUNED: dict[str, Family] = {
    family.name: family
    for family in (
        Family("TA", partial(scaled, TA, "scale"), (0.6, 0.8, 1.0, 1.2), 0.1, 0.2, 1.8),
        Family("TIES", partial(scaled, TIES, "scale"), (1.0, 1.5, 2.0), 0.25, 0.5, 3.0),
        Family("DARE", dare, (0.6, 0.8, 1.0, 1.2), 0.1, 0.2, 1.8),
        Family("RAM+", partial(scaled, {"name": "ram_plus"}, "rescale"), (0.1, 0.4, 0.7), 0.15, 0.0, 1.6),
        Family("Breadcrumbs", partial(scaled, CRUMBS, "density"), (0.3, 0.9), 0.3, 0.05, 1.0),
        Family("DELLA", partial(scaled, {"name": "della"}, "density"), (0.4, 0.6, 0.8), 0.1, 0.2, 0.8),
        Family("SCE", partial(scaled, {"name": "sce"}, "scale"), (1.0, 1.5, 2.0), 0.25, 0.5, 3.0),
        Family("TSV-M", partial(scaled, {"name": "tsv_m"}, "scale"), (0.7, 1.0, 1.3), 0.15, 0.4, 2.0, gpu=True),
        Family("Iso-C", partial(scaled, {"name": "iso_c"}, "scale"), (0.7, 1.0, 1.3), 0.15, 0.4, 2.0, gpu=True),
    )
}
"""By name. The setting that dev chooses is one of a grid that follows the score."""

RULES: dict[str, Rule] = {
    rule.label: rule
    for rule in (
        # the recommendation and what it is made of
        Rule("wudi_auto", WUDI_AUTO, gpu=True),
        Rule("wudi_auto per matrix", around("calibrate", WUDI, per="matrix"), gpu=True),
        Rule("wudi_auto 0.9", {**WUDI_AUTO, "retention": 0.9}, gpu=True),
        Rule("wudi_auto 1.1", {**WUDI_AUTO, "retention": 1.1}, gpu=True),
        Rule("wudi_auto, others sum", {**WUDI_AUTO, "others": "sum"}, gpu=True),
        Rule("wudi exact", WUDI, gpu=True),
        Rule("wudi adam", {"name": "wudi"}, gpu=True),
        Rule("wudi adam, retention 1", {"name": "wudi", "retention": 1.0}, gpu=True),
        Rule(
            "wudi_auto, RAM auto elsewhere",
            around("calibrate", WUDI),
            rules=tuple({"tensors": glob, "then": {"name": "ram_plus_auto"}} for glob in ("*embed_tokens*", "*norm*")),
            gpu=True,
        ),
        # the same with the base as one more agent that changes nothing where its inputs lie
        Rule("wudi_auto, keep", {**WUDI_AUTO, **WHOLE}, gpu=True, keep=BASE),
        Rule("wudi_auto, keep x 0.3", {**WUDI_AUTO, "keep": 0.3}, gpu=True, keep=BASE),
        Rule("wudi_auto, keep x 3", {**WUDI_AUTO, "keep": 3.0}, gpu=True, keep=BASE),
        Rule("wudi_auto, keep x 10", {**WUDI_AUTO, "keep": 10.0}, gpu=True, keep=BASE),
        Rule("wudi_auto, keep unowned", {**WUDI_AUTO, **WHOLE}, gpu=True, keep=UNOWNED),
        Rule("wudi_auto, untrained kept", {**WUDI_AUTO, "keep": 0.1}, gpu=True, keep=UNTRAINED),
        Rule("wudi_auto, untrained kept x 0.3", {**WUDI_AUTO, "keep": 0.3}, gpu=True, keep=UNTRAINED),
        Rule("wudi_auto, untrained kept x 1", {**WUDI_AUTO, **WHOLE}, gpu=True, keep=UNTRAINED),
        Rule("wudi exact, keep", {**WUDI, **WHOLE}, gpu=True, keep=BASE),
        Rule("wudi_auto 0.9, keep", {**WUDI_AUTO, **WHOLE, "retention": 0.9}, gpu=True, keep=BASE),
        Rule("regmean, keep", {**REGMEAN, **WHOLE}, gpu=True, keep=BASE, reads="grams"),
        # by what was measured on every agent's own answers
        Rule("regmean", REGMEAN, gpu=True, reads="grams"),
        Rule("fisher", {"name": "fisher"}, reads="importance"),
        Rule("RAM, importance", {**RAM, "shared": "importance"}, reads="importance"),
        Rule("esm", {"name": "esm"}, gpu=True, reads="grams"),
        Rule("esm_vit", {"name": "esm_vit"}, gpu=True, reads="grams"),
        # element by element
        Rule("mean", {"name": "linear"}),
        Rule("TA 1.0", {**TA, "scale": 1.0}),
        Rule("RAM", RAM),
        Rule("RAM+", {"name": "ram_plus"}),
        Rule("RAM+ soft", {"name": "ram_plus_soft"}),
        Rule("RAM+ auto", AUTO),
        Rule("RAM+ auto 1.1", {**AUTO, "retention": 1.1}),
        Rule("RAM+ auto, elect", {**AUTO, "shared": "elect"}),
        Rule("RAM+ auto, power 0.5", {**AUTO, "shared_power": 0.5}),
        Rule("RAM+ auto per tensor", {**AUTO, "scope": "tensor"}),
        Rule("RAM+ script", {"name": "ram_plus", "rescale": 0.2, "clip": 1.0}),
        Rule("RAM largest", {**RAM, "shared": "largest"}),
        Rule("TIES", TIES),
        Rule("DARE + TA", {"name": "dare"}),
        Rule("Breadcrumbs", {"name": "breadcrumbs"}),
        Rule("Breadcrumbs TIES", {"name": "breadcrumbs_ties"}),
        Rule("DELLA", {"name": "della"}),
        Rule("DELLA linear", {"name": "della_linear"}),
        Rule("SCE", {"name": "sce"}),
        Rule("multislerp", {"name": "multislerp"}),
        Rule("model_stock", {"name": "model_stock"}),
        Rule("disentangle TIES", around("disentangle", TIES)),
        Rule("calibrate TA", around("calibrate", {**TA, "scale": 1.0})),
        Rule("calibrate RAM", around("calibrate", RAM)),
        Rule("calibrate TIES", around("calibrate", TIES)),
        # directions of whole matrices
        Rule("resmerge", {"name": "resmerge"}, gpu=True),
        Rule("iso_c", {"name": "iso_c"}, gpu=True),
        Rule("iso_cts", {"name": "iso_cts"}, gpu=True),
        Rule("tsv_m", {"name": "tsv_m"}, gpu=True),
        Rule("svc TA", around("svc", {**TA, "scale": 1.0}), gpu=True),
        Rule("svc TIES", around("svc", TIES), gpu=True),
        Rule("calibrate resmerge", around("calibrate", {"name": "resmerge"}), gpu=True),
        Rule("calibrate iso_c", around("calibrate", {"name": "iso_c"}), gpu=True),
        Rule("calibrate tsv_m", around("calibrate", {"name": "tsv_m"}), gpu=True),
    )
}
"""By label: settings that no score chose."""

DEFAULTS: dict[str, str] = {
    RULES[label].method["name"]: label
    for label in (
        *("wudi_auto", "wudi adam", "mean", "TA 1.0", "TIES", "RAM", "RAM+", "RAM+ soft", "RAM+ auto", "SCE"),
        *("DARE + TA", "Breadcrumbs", "Breadcrumbs TIES", "DELLA", "DELLA linear", "disentangle TIES", "multislerp"),
        *("model_stock", "calibrate TA", "svc TA", "tsv_m", "iso_c", "iso_cts", "resmerge"),
        *("fisher", "regmean", "esm", "esm_vit"),
    )
}
"""Each registered method at its default, wrappers around another one; task_arithmetic is the plain sum, as its default
is the mean."""
LEFT_OUT = {
    "slerp": "takes two agents, as multislerp takes any number",
    "nearswap": "takes one agent",
    "region": "scales some elements of one agent to ask what they do; merges nothing",
}
"""Registered methods that are in no rule, and why."""
CORE = ("wudi_auto", "mean", "TA 1.0", "RAM", "RAM+", "RAM+ auto", "TIES")
KEEP = tuple(label for label, rule in RULES.items() if rule.keep)
WIDE = (*CORE, *KEEP)
"""Scored on all domains of every set in study 2: what a merge loses where no agent was trained is seen nowhere else."""


def remedies(damaged: str) -> list[Rule]:
    """The recommended rule with what can be advised about one agent of the set."""
    skips = {
        "skipped in MLPs": ("*.mlp.*",),
        "skipped in attention": ("*.self_attn.*",),
        "skipped in layers 0 to 9": ("*layers.?.*",),
        "skipped in layers 10 to 19": ("*layers.1?.*",),
        "skipped in layers 20 to 29": ("*layers.2?.*",),
        "skipped in embeddings and norms": ("*embed_tokens*", "*norm*"),
    }
    plain = RULES["wudi_auto"]
    weighed = [
        replace(plain, label=f"wudi_auto, damaged x {weight:g}", weights={damaged: weight}) for weight in (0.5, 0.25)
    ]
    skipped = [
        replace(plain, label=f"wudi_auto, damaged {name}", rules=tuple({"tensors": g, "skip": damaged} for g in globs))
        for name, globs in skips.items()
    ]
    return [replace(plain, label="wudi_auto, damaged left out", left_out=(damaged,)), *weighed, *skipped]


def advised(advice: dict[str, Any], label: str = "wudi_auto") -> Rule:
    """A rule with what the guard says of a set: {"weights", "rules", "leave_out"}, each optional."""
    return replace(
        RULES[label],
        label=f"{label}, advised",
        rules=tuple(advice.get("rules", ())),
        weights=dict(advice.get("weights", {})),
        left_out=tuple(advice.get("leave_out", ())),
    )
