"""A full probe's findings as typed JSON, in rows that load as tables."""

from __future__ import annotations

from math import isfinite
from typing import Any

from pydantic import Field

from agentmerge.frozen import Frozen, Record


class ModuleRow(Frozen):
    """One agent in one kind of module of one layer; counted on all elements."""

    layer: int
    """-1 outside the layers."""
    kind: str
    agent: str
    elements: int
    changed: int
    density: float
    unique: int
    shared: int
    overlap_unique_ratio: float | None
    """null where nothing is unique."""
    below_threshold: int
    """Bits differ from the base's, but not beyond the threshold."""


class PairRow(Frozen):
    """Two agents in one scope; counted on the sampled elements."""

    scope: str
    """"model", "layer 3" or a kind of module."""
    left: str
    right: str
    overlap: int
    """Elements that both changed."""
    expected: float
    """By chance, given how many elements of the scope each changed."""
    ratio: float | None
    """overlap / expected."""
    z: float | None
    """(overlap - expected) / standard deviation by chance; elements are not independent, so read it as a ranking."""
    ratio_within: float | None
    """The same ratio with chance taken within each module and each power of two of |base|."""
    z_within: float | None
    agree: float | None
    """Of the elements that both changed: in the same direction."""
    equal: float | None
    """Of the elements that both changed: by the same amount."""
    cosine: float | None
    """Of the two task vectors over the elements that both changed."""


class BinRow(Frozen):
    """One agent among the weights of one size."""

    exponent: int
    """2^exponent <= |base| < 2^(exponent + 1); -127: zero and float32 subnormals."""
    agent: str
    elements: int
    changed: int
    density: float


class BinPairRow(Frozen):
    """Two agents among the weights of one size."""

    exponent: int
    left: str
    right: str
    overlap: int
    expected: float
    """By chance, within each module of this size of weights."""
    ratio: float | None


class StepRow(Frozen):
    """Updates of one size in steps of the base's stored dtype."""

    agent: str
    steps: str
    """"1", "2", "3-4", "5-8" or "9+"."""
    elements: int
    share: float | None
    """Of the agent's changed elements."""


class AgentRow(Frozen):
    """One agent as a whole."""

    agent: str
    tensors_changed: int
    tensors: int
    magnitude: dict[str, float | None]
    """Quantiles of |tau| over the changed elements, at the lower end of a class that is 6 % wide."""
    norm: float | None
    """Of the changed part of the task vector, scaled up from the sample; null where a change is beyond float32."""
    unique_norm_share: float | None
    """Of its squared norm, what lies in unique elements."""
    conflict: float | None
    """Of its shared elements: some agents raise and others lower them."""
    cancelled: float | None
    """Of its shared elements: the mean change is not beyond the threshold."""
    expected_exactly: list[float | None]
    """By chance within each module and size of weights: shares of its changed elements that 1, 2, ... agents change."""


class LostRow(Frozen):
    """What the output dtype would take away, rounding to nearest."""

    method: str
    """"task_arithmetic" at 1 / N, or "ram"."""
    dtype: str
    agent: str
    changed_lost: float | None
    """Of the changed elements: moved, but stored as the base's number."""
    unique_lost: float | None


class SurvivalRow(Frozen):
    """How far a multiplied unique change outlives rounding to nearest."""

    dtype: str
    agent: str
    multiplier: float
    survived: float | None
    """Of the unique elements: stored as another number than the agent's own."""


class RescaleRow(Frozen):
    """The same for RAM+'s rescale; the two bounds are the survival at the multipliers measured next to `scale`."""

    dtype: str
    agent: str
    rescale: float
    scale: float
    """lambda = 1 + rescale * min(rho, clip)"""
    at_least: float | None
    at_most: float | None


class DilutionRow(Frozen):
    """What a method makes of one agent."""

    method: str
    agent: str
    multiplier: float | None
    """Of an element that only this agent changed, on average; null where it depends on more than is known here."""
    retention: float | None
    """Expected <merged - base, tau> / <tau, tau> before the output cast; null likewise."""
    note: str


class Advice(Frozen):
    """One rule that applies."""

    rule: str
    """Its name in docs/reading-a-report.md."""
    agents: list[str]
    """Whom it is about; empty: all."""
    text: str
    """What to do or to know, and why, with its numbers."""
    methods: list[dict[str, Any]] = Field(default_factory=list)
    """Those that it recommends, as a recipe takes them; each won in docs/evidence.md or evidence-tiny.md."""


class Findings(Record):
    """Everything a full probe found."""

    format: str = "agentmerge.findings/1"
    agents: list[str]
    threshold: float
    dtype: str
    """The base's, of most elements."""
    elements: int
    sampled_elements: int
    """All but `modules` and the survey is measured on these, leaves of 2,048 elements spread evenly."""
    headline: str
    kinds: list[str]
    """Of modules, in the order of a forward pass."""
    modules: list[ModuleRow]
    pairs: list[PairRow]
    bins: list[BinRow]
    bin_pairs: list[BinPairRow]
    steps: list[StepRow]
    totals: list[AgentRow]
    lost: list[LostRow]
    survival: list[SurvivalRow]
    rescale: list[RescaleRow]
    dilution: list[DilutionRow]
    advice: list[Advice]


def share(part: float, whole: float) -> float | None:
    """The quotient; None of nothing, and where either is not finite."""
    return float(part / whole) if whole and isfinite(part) and isfinite(whole) else None
