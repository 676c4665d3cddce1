"""A report's figures as PNG and SVG in a style fit for a paper, by matplotlib."""

from __future__ import annotations

from importlib.util import find_spec
from io import BytesIO
from typing import TYPE_CHECKING, Any

from agentmerge.errors import OutputError, RecipeError, SurveyError, Where
from agentmerge.files.staging import replace_file
from agentmerge.machine import how_to_install
from agentmerge.report import plots

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from agentmerge.record import MergeRecord, ProbeRecord

STYLE = {
    "font.size": 8, "axes.titlesize": 8, "axes.labelsize": 8, "legend.fontsize": 7, "xtick.labelsize": 7,
    "ytick.labelsize": 7, "axes.spines.top": False, "axes.spines.right": False, "axes.linewidth": 0.6,
    "lines.linewidth": 1.2, "legend.frameon": False, "svg.fonttype": "none", "svg.hashsalt": "agentmerge",
    "savefig.bbox": "tight", "savefig.dpi": 200, "figure.constrained_layout.use": True,
}  # fmt: skip
FIGURES: dict[str, Callable[[Any, Any], Any]] = {
    "density": plots.density,
    "overlap": plots.overlap,
    "modules": plots.modules,
    "pairs": plots.pairs,
    "bins": plots.bins,
    "steps": plots.steps,
    "rounding": plots.rounding,
    "dilution": plots.dilution,
}


def needs_matplotlib(option: str = "--figures") -> None:
    """Raise RecipeError where matplotlib, which an option needs, is not installed."""
    if find_spec("matplotlib") is None:
        raise RecipeError(f"{option}: needs matplotlib", todo=f"Install it: {how_to_install('report')}.")


def write_figures(record: ProbeRecord | MergeRecord, folder: Path) -> list[Path]:
    """Write every figure that the record can fill, as NAME.png and NAME.svg.

    Returns:
        The files.

    Raises:
        OutputError: they can't be written there.
        RecipeError: matplotlib is not installed.
        SurveyError: the record holds no findings.
    """
    needs_matplotlib()
    if record.findings is None:
        raise SurveyError("figures: this record holds no findings", todo="Probe with --full.")
    _make(folder)
    written = []
    for name, draw in FIGURES.items():
        if name == "pairs" and len(record.findings.agents) < 2:
            continue
        for ending, image in drawn(draw, record).items():
            path = folder / f"{name}.{ending}"
            replace_file(path, image)
            written.append(path)
    return written


def drawn(draw: Callable[[Any, Any], Any], data: Any) -> dict[str, bytes]:
    """One figure as "png" and "svg"; needs matplotlib.

    Args:
        draw: takes a matplotlib figure and the data, and fills the figure.
        data: what it shows.
    """
    import matplotlib as mpl
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    images = {}
    style: Any = STYLE  # matplotlib's own type names each of its settings
    with mpl.rc_context(style):
        figure = Figure()
        FigureCanvasAgg(figure)
        draw(figure, data)
        for ending in ("png", "svg"):
            image = BytesIO()
            figure.savefig(image, format=ending, metadata={"Date": None} if ending == "svg" else None)
            images[ending] = image.getvalue()
    return images


def _make(folder: Path) -> None:
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        found, where = f"{folder}: can't be written: {error.strerror}", Where(path=str(folder))
        raise OutputError(found, todo="Choose another place.", where=where) from error
