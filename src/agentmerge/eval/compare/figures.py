"""The paper's figures of scores: radar (1), bars (5), means of skills (6), score against merging time (9)."""

from __future__ import annotations

import math
import re
from typing import TYPE_CHECKING, Any

from agentmerge.eval.compare.rows import MEAN
from agentmerge.report.figures import drawn, needs_matplotlib
from agentmerge.report.plots import COLUMN, colour

if TYPE_CHECKING:
    from collections.abc import Callable

    from agentmerge.eval.compare.rows import Comparison, ModelRow, UnitRow

GREY = "#7f8790"
MOST_AXES = 16
"""Of a radar; with more columns its axes are the skills."""
HATCH = {"base": "", "agent": "////", "merged": ""}
"""By role, so that bars are told apart without colours."""


def figures_of(found: Comparison) -> dict[str, tuple[str, dict[str, bytes]]]:
    """Every figure that a comparison can fill.

    Returns:
        By name the caption, and the images by ending.

    Raises:
        RecipeError: matplotlib is not installed.
    """
    needs_matplotlib("--report")
    return {
        name: (caption, drawn(draw, found)) for name, (draw, caption, possible) in FIGURES.items() if possible(found)
    }


def inline(svg: bytes) -> str:
    """An SVG that can stand in a page: without its header, in the page's own ink, with a background of none."""
    text = svg[svg.index(b"<svg") :].decode()
    text = re.sub(r"(?<=fill: )#000000|(?<=stroke: )#000000", "currentColor", text)
    text = text.replace("fill: #ffffff", "fill: none")
    return text.replace("<svg ", '<svg role="img" fill="currentColor" ', 1)


def radar(figure: Any, found: Comparison) -> None:
    """Each axis a column (or a skill), as a share of the best model's score there."""
    units, models = _axes_of(found), [model for model in found.models if _complete(found, model)]
    figure.set_size_inches(1.6 * COLUMN, 1.45 * COLUMN)
    axes = figure.add_subplot(projection="polar")
    angles = [2 * math.pi * i / len(units) for i in range(len(units))]
    best = [max(_score(found, model, unit) for model in models) for unit in units]
    for model in models:
        shares = [_score(found, model, unit) / top if top else 0.0 for unit, top in zip(units, best, strict=True)]
        wide = model.role == "merged"
        axes.plot(
            [*angles, angles[0]], [*shares, shares[0]], color=_colour(found, model), label=model.name,
            linewidth=1.8 if wide else 1.0, linestyle={"base": ":", "agent": "--"}.get(model.role, "-"),
        )  # fmt: skip
    axes.set_theta_offset(math.pi / 2)
    axes.set_theta_direction(-1)
    axes.set_xticks(angles, [f"{unit.label}\n{100 * top:.1f}" for unit, top in zip(units, best, strict=True)])
    axes.tick_params(axis="x", pad=12)
    axes.set_ylim(0, 1.05)
    axes.set_yticks([0.25, 0.5, 0.75, 1.0], [])
    axes.legend(loc="upper left", bbox_to_anchor=(1.2, 1.08))


def bars(figure: Any, found: Comparison) -> None:
    """The mean of all columns, with standard errors."""
    models = [model for model in found.models if found.cell(model.name, MEAN).mean is not None]
    figure.set_size_inches(1.5 * COLUMN, 0.7 + 0.24 * len(models))
    axes = figure.subplots()
    cells = [found.cell(model.name, MEAN) for model in models]
    drawn_bars = axes.barh(
        [model.name for model in models],
        [100 * (cell.mean or 0) for cell in cells],
        xerr=[100 * (cell.error or 0) for cell in cells],
        color=[_colour(found, model) for model in models],
        error_kw={"elinewidth": 1.0, "capsize": 2, "ecolor": "#000000"},
        height=0.7,
    )
    for bar, model in zip(drawn_bars, models, strict=True):
        bar.set_hatch(HATCH[model.role])
        bar.set_edgecolor("#ffffff" if model.role == "agent" else "none")
    top = max(100 * ((cell.mean or 0) + (cell.error or 0)) for cell in cells)
    for place, cell in enumerate(cells):
        end = 100 * ((cell.mean or 0) + (cell.error or 0))
        axes.text(end + 0.015 * top, place, f"{100 * (cell.mean or 0):.1f}", va="center", fontsize=7)
    axes.set_xlim(0, 1.12 * top or 1)
    axes.invert_yaxis()
    axes.set_xlabel("mean of all columns (%), with standard error")


def skills(figure: Any, found: Comparison) -> None:
    """The mean of each skill's columns, model beside model."""
    units = found.skills()
    figure.set_size_inches(3.1 * COLUMN, 2.6)
    axes, n = figure.subplots(), len(found.models)
    for t, model in enumerate(found.models):
        cells = [found.cell(model.name, unit.id) for unit in units]
        places = [k + (t - (n - 1) / 2) * 0.8 / n for k in range(len(units))]
        axes.bar(
            places, [100 * (cell.mean or 0) for cell in cells], yerr=[100 * (cell.error or 0) for cell in cells],
            width=0.75 / n, color=_colour(found, model), label=model.name, hatch=HATCH[model.role],
            edgecolor="#ffffff" if model.role == "agent" else "none",
            error_kw={"elinewidth": 0.8, "capsize": 1.5, "ecolor": "#000000"},
        )  # fmt: skip
    axes.set_xticks(range(len(units)), [unit.label for unit in units])
    axes.set_ylabel("mean (%)")
    axes.legend(loc="upper left", bbox_to_anchor=(1.0, 1.0))


def time(figure: Any, found: Comparison) -> None:
    """Score against the seconds that a merge took."""
    models = [model for model in found.models if model.seconds is not None and _has_mean(found, model)]
    figure.set_size_inches(1.5 * COLUMN, 0.8 * COLUMN)
    axes = figure.subplots()
    for model in models:
        cell = found.cell(model.name, MEAN)
        axes.errorbar(
            model.seconds, 100 * (cell.mean or 0), yerr=100 * (cell.error or 0), fmt="o", markersize=5, capsize=2,
            color=_colour(found, model), label=model.name,
        )  # fmt: skip
    spread = [model.seconds or 0 for model in models]
    if min(spread) > 0 and max(spread) > 10 * min(spread):
        axes.set_xscale("log")
        axes.xaxis.get_major_locator().set_params(subs=(1.0, 2.0, 5.0))
        axes.xaxis.set_major_formatter("{x:g}")
        axes.xaxis.set_minor_formatter("")
    else:
        axes.set_xlim(left=0)
    axes.set_xlabel("seconds of merging, reading and writing included")
    axes.set_ylabel("mean of all columns (%)")
    axes.margins(y=0.2)
    axes.legend(loc="upper left", bbox_to_anchor=(1.0, 1.0))


def _axes_of(found: Comparison) -> list[UnitRow]:
    columns = [unit for unit in found.units if unit.kind == "column" and not unit.part]
    return columns if 3 <= len(columns) <= MOST_AXES else found.skills()


def _score(found: Comparison, model: ModelRow, unit: UnitRow) -> float:
    return found.cell(model.name, unit.id).mean or 0.0


def _complete(found: Comparison, model: ModelRow) -> bool:
    """Whether a model has a score on every axis."""
    return all(found.cell(model.name, unit.id).mean is not None for unit in _axes_of(found))


def _has_mean(found: Comparison, model: ModelRow) -> bool:
    return found.cell(model.name, MEAN).mean is not None


def _colour(found: Comparison, model: ModelRow) -> str:
    """Grey for the base; agents and merges each have one of their own."""
    if model.role == "base":
        return GREY
    return colour([one.name for one in found.models if one.role != "base"].index(model.name))


FIGURES: dict[str, tuple[Callable[[Any, Any], None], str, Callable[[Comparison], bool]]] = {
    "radar": (
        radar,
        "Each axis as a share of the best score on it, which stands at its end (the paper's figure 1).",
        lambda found: len(_axes_of(found)) >= 3 and any(_complete(found, model) for model in found.models),
    ),
    "bars": (
        bars,
        "The plain mean of all columns (the paper's figure 5 in form).",
        lambda found: any(_has_mean(found, model) for model in found.models),
    ),
    "time": (
        time,
        "Score against merging time (the paper's figure 9).",
        lambda found: any(model.seconds is not None and _has_mean(found, model) for model in found.models),
    ),
    "skills": (skills, "The mean of each skill's columns (the paper's figure 6).", lambda found: bool(found.skills())),
}
