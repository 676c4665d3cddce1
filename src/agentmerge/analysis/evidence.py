"""What docs/evidence.md and docs/evidence-tiny.md found of settings that nothing was tuned for.

Advice recommends only what won there.

Scores are points of exact match against the better of Task Arithmetic and TIES, both tuned on dev: the mean over sets
of agents, and the worst of them. TRIED is of tiny agents, six sets and two seeds (evidence-tiny.md); LARGER of agents
of 135M parameters, twelve sets of the two seeds that nothing was chosen on (evidence-135m.md).
"""

from __future__ import annotations

from typing import Any, NamedTuple

WON = 0.5
"""Points of the mean from which on a setting won: single comparisons have standard errors of 0.5 to 0.9."""


class Tried(NamedTuple):
    """One setting and how it did."""

    label: str
    """In docs/evidence-tiny.md."""
    method: dict[str, Any]
    """As a recipe takes it."""
    mean: float
    worst: float

    @property
    def won(self) -> bool:
        """Whether it is worth a recommendation."""
        return self.mean >= WON

    @property
    def name(self) -> str:
        """Of the method, as advice writes it."""
        return f"`{self.method['name']}`"


AUTO = Tried("RAM+ auto", {"name": "ram_plus_auto"}, 0.9, -0.5)
TRIED = (
    Tried("WUDI adam", {"name": "wudi"}, 1.2, -0.8),
    AUTO,
    Tried("RAM+ auto, bound 2", {"name": "ram_plus_auto", "bound": 2}, 0.2, -0.7),
    Tried("RAM+ auto, power 0.5", {"name": "ram_plus_auto", "shared_power": 0.5}, 0.1, -0.3),
    Tried("RAM+ auto, elect", {"name": "ram_plus_auto", "shared": "elect"}, 0.1, -0.9),
    Tried("RAM+ r 0.1", {"name": "ram_plus"}, 0.1, -0.9),
    Tried("RAM", {"name": "ram"}, 0.0, -1.2),
    Tried("RAM, power 0.5", {"name": "ram", "shared_power": 0.5}, -0.1, -1.0),
    Tried("calibrated RAM", {"name": "calibrate", "then": "ram"}, -0.8, -2.3),
    Tried("calibrated TA", {"name": "calibrate", "then": "task_arithmetic"}, -1.2, -4.9),
    Tried("TA 1.0", {"name": "task_arithmetic", "scale": 1.0}, -1.5, -4.4),
    Tried("RAM, shared sum", {"name": "ram", "shared": "sum"}, -1.5, -4.4),
    Tried("RAM, shared elect", {"name": "ram", "shared": "elect"}, -2.3, -4.9),
    Tried(
        "calibrated RAM, elect, power 0.5",
        {"name": "calibrate", "then": {"name": "ram", "shared": "elect", "shared_power": 0.5}},
        -5.4,
        -10.2,
    ),
    Tried("calibrated TIES", {"name": "calibrate", "then": "ties"}, -11.6, -26.2),
)
"""All of them, the best first."""
RULE = Tried("wudi_auto", {"name": "wudi_auto"}, 4.7, 0.9)
LARGER = (
    RULE,
    Tried("RAM+ auto", {"name": "ram_plus_auto"}, 0.0, -2.0),
    Tried("RAM+", {"name": "ram_plus"}, -2.2, -4.2),
    Tried("RAM", {"name": "ram"}, -3.7, -5.8),
    Tried("mean", {"name": "linear"}, -14.2, -20.5),
)
"""All of them, the best first."""
BASELINE = "task_arithmetic"
"""What they were measured against where its scale is tuned on scores: worth as much, to whom can score."""
