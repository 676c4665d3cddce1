"""Which merges the report is made of. Knows no files and no results."""

from __future__ import annotations

from dataclasses import dataclass, field
from itertools import combinations
from typing import Any

TRIO, OTHER_TRIO = ("code", "memory", "tool"), ("code", "math", "memory")
ALL = ("code", "math", "memory", "tool")
OUTPUTS = ("nearest", "stochastic", "float32")
SETS = (TRIO, OTHER_TRIO, ALL, *combinations(TRIO, 2))
PLUS, REGION = {"name": "ram_plus"}, {"name": "region"}


@dataclass(frozen=True)
class Merge:
    """One merge to make and score; `family` is what is tuned together."""

    family: str
    label: str
    method: dict[str, Any] = field(hash=False)
    agents: tuple[str, ...] = TRIO
    output: str = "nearest"

    @property
    def key(self) -> str:
        """Its name in the results."""
        return f"{self.label} | {'+'.join(self.agents)} | {self.output}"


def around(name: str, inner: dict[str, Any] | str, **settings: Any) -> dict[str, Any]:
    """A method around another."""
    return {"name": name, "then": inner, **settings}


TUNED: dict[str, dict[str, dict[str, Any]]] = {
    "Task Arithmetic": {
        f"TA {scale:.2g}": {"name": "task_arithmetic", "scale": scale} for scale in (1 / 3, 0.5, 0.7, 1.0, 1.2)
    },
    "TIES": {
        f"TIES keep {density}, scale {scale}": {"name": "ties", "density": density, "scale": scale}
        for density, scale in ((0.2, 1.0), (0.2, 1.5), (0.2, 2.0), (0.5, 1.0), (0.5, 1.5))
    },
    "DARE": {
        f"DARE 0.5, TA {scale:.2g}": around("dare", {"name": "task_arithmetic", "scale": scale}, density=0.5)
        for scale in (1 / 3, 0.7, 1.0)
    },
    "Fisher": {f"Fisher x{scale}": {"name": "fisher", "scale": scale} for scale in (1.0, 2.0)},
    "WUDI": {
        "WUDI adam": {"name": "wudi", "solver": "adam"},
        "WUDI exact": {"name": "wudi", "solver": "exact"},
    },
    "RAM": {"RAM": {"name": "ram"}},
    "RAM+": {f"RAM+ r {rescale}": {**PLUS, "rescale": rescale} for rescale in (0.05, 0.1, 0.2, 0.3, 0.5, 1.0)},
    "RAM+s": {f"RAM+s r {rescale}": {"name": "ram_plus_soft", "rescale": rescale} for rescale in (0.1, 0.5, 1.0)},
}
"""By family: everything that dev chooses from."""

PAPER = {
    "Task Arithmetic": "TA 0.33",
    "TIES": "TIES keep 0.2, scale 1.0",
    "DARE": "DARE 0.5, TA 0.33",
    "Fisher": "Fisher x1.0",
    "WUDI": "WUDI adam",
    "RAM": "RAM",
    "RAM+": "RAM+ r 0.1",
    "RAM+s": "RAM+s r 0.1",
}
"""The setting of each family that needs no tuning: its paper's or its usual default."""

UNTUNED: dict[str, dict[str, Any]] = {
    "TA 1.0": {"name": "task_arithmetic", "scale": 1.0},
    "RAM": {"name": "ram"},
    "RAM+ r 0.1": {**PLUS, "rescale": 0.1},
    "RAM, shared sum": {"name": "ram", "shared": "sum"},
    "RAM, shared elect": {"name": "ram", "shared": "elect"},
    "RAM, power 0.5": {"name": "ram", "shared_power": 0.5},
    "RAM+ auto": {"name": "ram_plus_auto"},
    "RAM+ auto, power 0.5": {**PLUS, "rescale": "auto", "shared_power": 0.5},
    "RAM+ auto, elect": {**PLUS, "rescale": "auto", "shared": "elect"},
    "RAM+ auto, bound 2": {**PLUS, "rescale": "auto", "bound": 2.0},
    "calibrated RAM": around("calibrate", {"name": "ram"}),
    "calibrated RAM, elect, power 0.5": around("calibrate", {"name": "ram", "shared": "elect", "shared_power": 0.5}),
    "calibrated TIES": around("calibrate", {"name": "ties"}),
    "calibrated TA": around("calibrate", {"name": "task_arithmetic"}),
    "WUDI adam": TUNED["WUDI"]["WUDI adam"],
}
"""No setting of these was chosen by a score."""


def main_merges() -> list[Merge]:
    """Every setting of every family on the paper's three agents, stored in bf16; the usual ones in float32 too."""
    merges = []
    for family, labels in TUNED.items():
        for label, method in labels.items():
            outputs = OUTPUTS if label == PAPER[family] else OUTPUTS[:2]
            merges += [Merge(family, label, method, output=output) for output in outputs]
    return merges


def region_merges() -> list[Merge]:
    """Figure 3: one agent's unique region, whole and divided by three, and its shared one."""
    return [
        Merge("region", f"{agent} {keep} x{factor:.2g}", {**REGION, "agent": agent, "keep": keep, "factor": factor})
        for agent in TRIO
        for keep, factor in (("unique", 1.0), ("unique", 1 / 3), ("shared", 1.0))
    ]


def untuned_merges() -> list[Merge]:
    """The untuned settings on every set of agents, rounded stochastically; on the first set both ways."""
    first = [Merge("untuned", label, method, output=o) for label, method in UNTUNED.items() for o in OUTPUTS[:2]]
    rest = [(agents, label, method) for agents in SETS[1:] for label, method in UNTUNED.items()]
    return first + [Merge("untuned", label, method, agents, "stochastic") for agents, label, method in rest]


def baseline_merges() -> list[Merge]:
    """The strongest tuned baselines on the other sets of agents."""
    return [
        Merge(family, label, method, agents)
        for agents in SETS[1:]
        for family in ("Task Arithmetic", "TIES")
        for label, method in TUNED[family].items()
    ]


def sensitivity_merges() -> list[Merge]:
    """Figure 5 and table 12: r with alpha 2, alpha with r 0.5; the other values of r are in `main_merges`."""
    points = [(0.5, 0.5), (0.5, 1.0), (0.5, 4.0)]
    return [
        Merge("sensitivity", f"RAM+ r {r} alpha {a}", {**PLUS, "rescale": r, "clip": a}, output=output)
        for r, a in points
        for output in OUTPUTS[:2]
    ]


def every_merge() -> list[Merge]:
    """All of them, each once, what the main table needs first."""
    merges = [*main_merges(), *region_merges(), *untuned_merges(), *baseline_merges(), *sensitivity_merges()]
    once: dict[str, Merge] = {}
    for merge in merges:
        once.setdefault(merge.key, merge)  # the first is of the family that is tuned
    return list(once.values())
