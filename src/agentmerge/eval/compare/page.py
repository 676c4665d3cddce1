"""One self-contained HTML page of a comparison, in the style of a merge's report; it needs no script and no network."""

from __future__ import annotations

from typing import TYPE_CHECKING

from agentmerge.eval.compare.figures import figures_of, inline
from agentmerge.eval.compare.formats import remarks
from agentmerge.eval.compare.layout import LEGEND, grids
from agentmerge.files.staging import replace_file
from agentmerge.report.page import rendered, script_json

if TYPE_CHECKING:
    from pathlib import Path

    from agentmerge.eval.compare.rows import Comparison


def write_page(found: Comparison, path: Path) -> None:
    """Write the page.

    Raises:
        OutputError: it can't be written there.
        RecipeError: matplotlib is not installed.
    """
    replace_file(path, page(found).encode())


def page(found: Comparison) -> str:
    """The page's HTML.

    Raises:
        RecipeError: matplotlib is not installed.
    """
    return rendered(
        "scores.html.j2",
        headline=headline(found),
        verdict=found.verdict,
        figures={name: (caption, inline(images["svg"])) for name, (caption, images) in figures_of(found).items()},
        grids=grids(found),
        legend=LEGEND,
        remarks=remarks(found),
        models=found.models,
        settings=found.settings,
        data=script_json(found.model_dump(mode="json")),
    )


def headline(found: Comparison) -> str:
    """What the page is about, in one line: the first of the verdict."""
    counts = {role: sum(model.role == role for model in found.models) for role in ("agent", "merged")}
    parts = [_counted(counts["agent"], "agent"), _counted(counts["merged"], "merge")]
    return f"{' and '.join(part for part in parts if part) or 'Models'}, scored beside each other"


def _counted(count: int, noun: str) -> str:
    return f"{count} {noun}{'' if count == 1 else 's'}" if count else ""
