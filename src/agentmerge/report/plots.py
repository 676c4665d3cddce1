"""The figures themselves, one function each: a matplotlib figure and a record in, axes filled."""

from __future__ import annotations

from math import log2
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from agentmerge.analysis.rows import Findings
    from agentmerge.record import MergeRecord, ProbeRecord

    Record = ProbeRecord | MergeRecord

PALETTE = ("#0072b2", "#d55e00", "#00805c", "#a84b86", "#8a6d00", "#4b4fb8", "#7a4a21", "#5c6670")
COLUMN = 3.4
"""Inches of a paper's column."""


def colour(i: int) -> str:
    """Of agent or pair number i."""
    return PALETTE[i % len(PALETTE)]


def density(figure: Any, record: Record) -> None:
    """Bars of the changed fraction."""
    found = _found(record)
    figure.set_size_inches(COLUMN, 0.8 + 0.25 * len(found.agents))
    axes = figure.subplots()
    values = [100 * record.survey.agents[name].density for name in found.agents]
    bars = axes.barh(found.agents, values, color=[colour(t) for t in range(len(values))])
    axes.bar_label(bars, fmt="%.2f", padding=2, fontsize=7)
    axes.invert_yaxis()
    axes.set_xlabel("changed elements (%)")


def overlap(figure: Any, record: Record) -> None:
    """Bars of the changed elements by how many agents changed them, with what chance gives."""
    found = _found(record)
    figure.set_size_inches(COLUMN, 0.8 + 0.3 * len(found.agents) ** 1.4)
    axes, n = figure.subplots(), len(found.agents)
    for t, name in enumerate(found.agents):
        agent, chance = record.survey.agents[name], found.totals[t].expected_exactly
        shares = [100 * count / max(agent.changed, 1) for count in agent.changed_by_exactly]
        places = [k + (t - (n - 1) / 2) * 0.8 / n for k in range(n)]
        axes.barh(places, shares, height=0.75 / n, color=colour(t), label=name)
        for place, value in zip(places, chance, strict=True):
            if value is not None:
                axes.plot([100 * value] * 2, [place - 0.35 / n, place + 0.35 / n], color="black", linewidth=1.5)
    axes.plot([], [], color="black", linewidth=1.5, label="by chance")
    axes.set_yticks(range(n), ["alone", *(f"{k} agents" for k in range(2, n + 1))])
    axes.invert_yaxis()
    axes.set_xlabel("of the agent's changed elements (%)")
    axes.legend()


def modules(figure: Any, record: Record) -> None:
    """Heat maps of the density by layer and kind of module."""
    found = _found(record)
    layers = sorted({row.layer for row in found.modules})
    top = max(row.density for row in found.modules) * 100
    figure.set_size_inches(2 * COLUMN, 1.4 + min(0.1 * len(layers), 5))
    many = figure.subplots(1, len(found.agents), squeeze=False, sharey=True)[0]
    for axes, name in zip(many, found.agents, strict=True):
        cells = [[float("nan")] * len(found.kinds) for _ in layers]
        for row in found.modules:
            if row.agent == name:
                cells[layers.index(row.layer)][found.kinds.index(row.kind)] = 100 * row.density
        image = axes.imshow(cells, aspect="auto", vmin=0, vmax=top, cmap="viridis")
        axes.set_title(name)
        axes.set_xticks(range(len(found.kinds)), found.kinds, rotation=60, ha="right")
    step = -(-len(layers) // 12)
    many[0].set_yticks(range(0, len(layers), step), [_layer(layer) for layer in layers[::step]])
    many[0].set_ylabel("layer")
    figure.colorbar(image, ax=many, label="changed (%)")


def pairs(figure: Any, record: Record) -> None:
    """The overlap of every pair against chance, over the model and among weights of one size."""
    found = _found(record)
    rows = [row for row in found.pairs if row.scope == "model"]
    n = len(found.agents)
    figure.set_size_inches(2 * COLUMN, 0.9 + 0.4 * n)
    for axes, field, title in zip(
        figure.subplots(1, 2), ("ratio", "ratio_within"), ("over the model", "among weights of one size"), strict=True
    ):
        cells = [[float("nan")] * n for _ in range(n)]
        for row in rows:
            s, t = found.agents.index(row.left), found.agents.index(row.right)
            if (value := getattr(row, field)) is not None:
                cells[s][t] = cells[t][s] = log2(value) if value else float("nan")
                for x, y in ((s, t), (t, s)):
                    axes.text(x, y, f"{value:.2f}", ha="center", va="center")
        bound = max([0.6, *(abs(x) for line in cells for x in line if x == x)])
        axes.imshow(cells, cmap="PuOr", vmin=-1.5 * bound, vmax=1.5 * bound)
        axes.set_xticks(range(n), found.agents)
        axes.set_yticks(range(n), found.agents)
        axes.set_title(f"overlap / chance, {title}")


def bins(figure: Any, record: Record) -> None:
    """Density, and overlap against chance, by the size of the weight."""
    found = _found(record)
    figure.set_size_inches(2 * COLUMN, 2.2)
    left, right = figure.subplots(1, 2)
    common = [row for row in found.bins if row.elements >= 1e-4 * found.sampled_elements]
    _lines(left, found.agents, lambda name: [(r.exponent, 100 * r.density) for r in common if r.agent == name])
    names = [(row.left, row.right) for row in found.pairs if row.scope == "model"]
    told = [row for row in found.bin_pairs if row.expected >= 30]
    _lines(right, names, lambda pair: [(r.exponent, r.ratio) for r in told if (r.left, r.right) == pair])
    right.axhline(1, color="grey", linestyle="--", linewidth=0.8)
    left.set_ylabel("changed (%)")
    right.set_ylabel("overlap / chance")
    for axes in (left, right):
        axes.set_xlabel(r"$|\mathrm{base}| \geq 2^x$")
        axes.legend()


def steps(figure: Any, record: Record) -> None:
    """How many steps of the stored dtype the updates are."""
    found = _found(record)
    figure.set_size_inches(COLUMN, 2.2)
    axes, n = figure.subplots(), len(found.agents)
    for t, name in enumerate(found.agents):
        rows = [row for row in found.steps if row.agent == name]
        places = [k + (t - (n - 1) / 2) * 0.8 / n for k in range(len(rows))]
        axes.bar(places, [100 * (row.share or 0) for row in rows], width=0.75 / n, color=colour(t), label=name)
    axes.set_xticks(range(5), ["1", "2", "3-4", "5-8", "9+"])
    axes.set_xlabel(f"steps of {found.dtype}")
    axes.set_ylabel("of the changed elements (%)")
    axes.legend()


def rounding(figure: Any, record: Record) -> None:
    """On how many unique elements a multiplier survives the output dtype."""
    found = _found(record)
    figure.set_size_inches(2 * COLUMN, 2.2)
    for axes, dtype in zip(figure.subplots(1, 2, sharey=True), ("BF16", "F16"), strict=True):
        rows = [row for row in found.survival if row.dtype == dtype and row.survived is not None]
        points = {
            name: [(row.multiplier, 100 * (row.survived or 0)) for row in rows if row.agent == name]
            for name in found.agents
        }
        _lines(axes, found.agents, points.__getitem__)
        axes.set_title(f"stored as {dtype}, to nearest")
        axes.set_xlabel("multiplier of unique changes")
        axes.set_ylim(0, 103)
        axes.legend()
    figure.axes[0].set_ylabel("survived (% of unique)")


def dilution(figure: Any, record: Record) -> None:
    """What each method makes of unique changes, and how much of each agent it is expected to keep."""
    found = _found(record)
    methods = list(dict.fromkeys(row.method for row in found.dilution))
    figure.set_size_inches(2 * COLUMN, 0.8 + 0.18 * len(methods))
    titles = {"multiplier": "multiplier of unique changes", "retention": "expected retention"}
    for axes, (field, title) in zip(figure.subplots(1, 2, sharey=True), titles.items(), strict=True):
        for t, name in enumerate(found.agents):
            rows = [row for row in found.dilution if row.agent == name and getattr(row, field) is not None]
            places = [methods.index(row.method) + (t - (len(found.agents) - 1) / 2) * 0.2 for row in rows]
            axes.plot([getattr(row, field) for row in rows], places, "o", markersize=3.5, color=colour(t), label=name)
        axes.axvline(1, color="grey", linestyle="--", linewidth=0.8)
        axes.set_xlabel(title)
        axes.set_yticks(range(len(methods)), methods)
    figure.axes[0].invert_yaxis()
    figure.axes[0].legend()


def _lines(axes: Any, names: Iterable[Any], points: Callable[[Any], list[tuple[float, Any]]]) -> None:
    for i, name in enumerate(names):
        found = [(x, y) for x, y in points(name) if y is not None]
        label = name if isinstance(name, str) else " and ".join(name)
        axes.plot([x for x, _ in found], [y for _, y in found], "o-", markersize=2.5, color=colour(i), label=label)


def _layer(layer: int) -> str:
    return "outside" if layer < 0 else str(layer)


def _found(record: Record) -> Findings:
    assert record.findings is not None
    return record.findings
