"""One self-contained HTML page of a comparison, in the style of a merge's report; it needs no script and no network."""

from __future__ import annotations

import re
from html import escape
from typing import TYPE_CHECKING

from agentmerge.eval.compare.figures import figures_of, inline
from agentmerge.eval.compare.formats import remarks
from agentmerge.eval.compare.layout import grids, legend
from agentmerge.eval.compare.words import listed
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
        verdict=[(one, with_code(one.text)) for one in found.verdict],
        figures={name: (caption, inline(images["svg"])) for name, (caption, images) in figures_of(found).items()},
        grids=grids(found),
        legend=legend(found),
        remarks=remarks(found),
        models=found.models,
        settings=found.settings,
        data=script_json(found.model_dump(mode="json")),
    )


def headline(found: Comparison) -> str:
    """The verdict in a line."""
    said = {one.rule: one for one in reversed(found.verdict)}
    merges = [model.name for model in found.models if model.role == "merged"]
    parts = []
    if "noise" in said:
        parts.append("No difference is more than noise")
    elif "best_agent" in said and said["best_agent"].change:
        parts.append(f"{said['best_agent'].rows[0]} alone beats every merge")
    elif "best_merge" in said:
        level = said["best_merge"].rows
        best = f"{level[0]} is the best of {len(merges)} merges"
        parts.append(best if len(level) == 1 else f"{listed(level)} are level")
    parts += [f"{one.rows[0]} broke what the base could do" for one in found.verdict if one.rule == "broke"]
    line = "; ".join(parts) or f"{len(found.models)} models scored beside each other"
    return line.replace("-", "\N{NON-BREAKING HYPHEN}")


def with_code(text: str) -> str:
    """Escaped, with what stands between backticks as code."""
    return re.sub(r"`([^`]+)`", r"<code>\1</code>", escape(text))
