"""Write a record's page and figures where the command line asks for them."""

from __future__ import annotations

from typing import TYPE_CHECKING

from agentmerge.errors import OutputError, Where
from agentmerge.files.os_errors import output_errors

if TYPE_CHECKING:
    from pathlib import Path

    from agentmerge.recipe import Recipe
    from agentmerge.record import MergeRecord, ProbeRecord


def check_places(*files: Path | None, recipe: Recipe, figures: Path | None = None, data: Path | None = None) -> None:
    """Raise OutputError for a file that can't be written or that is read, before the work is done.

    Args:
        files: that will be written or replaced; None is passed over.
        recipe: of what is read.
        figures: a folder for files; None for none.
        data: a file that is read beside the recipe; None for none.
    """
    from agentmerge.engine.reads import named_in  # not for the help

    read = named_in(recipe)
    if data is not None and data.exists():
        read.add_file(data, "the data")
    for file in filter(None, files):
        with output_errors(file, "Choose another place."):
            if file.is_dir() or not file.parent.is_dir():
                found = "is a folder" if file.is_dir() else f"there is no folder {file.parent}"
                where = Where(path=str(file))
                raise OutputError(f"{file}: can't be written: {found}", todo="Choose another place.", where=where)
            read.refuse_file(file)
    if figures is not None:
        read.refuse(figures, figures.resolve())


def write_reports(record: ProbeRecord | MergeRecord, html: Path | None, figures: Path | None) -> None:
    """The page into a file, the figures into a folder; None leaves one out.

    Raises:
        OutputError: it can't be written.
        RecipeError: figures without matplotlib.
    """
    if html is not None:
        from agentmerge.report.page import write_page  # jinja2, for those who want a page

        write_page(record, html)
    if figures is not None:
        from agentmerge.report.figures import write_figures

        write_figures(record, figures)
