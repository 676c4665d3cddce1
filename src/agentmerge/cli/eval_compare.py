"""The command `agentmerge eval compare`."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from agentmerge.cli.console import say, tell_warnings
from agentmerge.cli.options import Json, Quiet, takes_settings
from agentmerge.cli.process import printing
from agentmerge.cli.table import Column, Prose, Table
from agentmerge.errors import EvalError
from agentmerge.eval.compare.wanted import Wanted
from agentmerge.report.figures import needs_matplotlib

if TYPE_CHECKING:
    from agentmerge.eval.compare.layout import Grid, Shown
    from agentmerge.eval.compare.rows import Comparison

MARKS = {"best": "*", "second": "'", "": ""}
LEGEND = "* {best}, ' {second}, ^ {beats}"


@takes_settings(Wanted, Wanted)
def eval_compare(
    wanted: Wanted,
    folders: Annotated[
        list[Path] | None,
        typer.Argument(metavar="[DIR]", help="Folders that `agentmerge eval --out` wrote.", show_default=False),
    ] = None,
    base: Annotated[Path | None, typer.Option(metavar="DIR", help="The base's evaluation.", show_default=False)] = None,
    agent: Annotated[
        list[str] | None,
        typer.Option(metavar="NAME=DIR", help="An agent's evaluation; repeat.", show_default=False),
    ] = None,
    merged: Annotated[
        list[str] | None,
        typer.Option(metavar="NAME=DIR", help="A merged model's evaluation; repeat.", show_default=False),
    ] = None,
    format: Annotated[  # noqa: A002 - the option's name
        Literal["text", "markdown", "latex", "csv"], typer.Option(help="How it is printed.")
    ] = "text",
    report: Annotated[
        Path | None,
        typer.Option(metavar="FILE.html", help="Write a page with figures; needs matplotlib.", show_default=False),
    ] = None,
    json: Json = False,
    quiet: Quiet = False,
) -> None:
    """Set evaluations side by side: tables, differences that are more than noise, and a verdict."""
    from agentmerge.eval.compare.comparison import compare as compared
    from agentmerge.eval.compare.references import PAPER, published
    from agentmerge.eval.compare.roles import entries_of

    if report is not None:
        needs_matplotlib("--report")
    names = [*([PAPER] if wanted.paper else []), *(wanted.reference or [])]
    references = [published(name) for name in dict.fromkeys(names)]
    entries = entries_of(folders or [], base, _folders("--agent", agent), _folders("--merged", merged))
    found = compared(
        entries,
        suites=[name for name in wanted.suites.split(",") if name],
        against=wanted.against or None,
        skills={name: columns.split(",") for name, columns in _pairs("--skill", wanted.skill).items()},
        specialists=_pairs("--specialist", wanted.specialist),
        references=references,
        seed=wanted.seed,
    )
    if report is not None:
        from agentmerge.eval.compare.page import write_page

        write_page(found, report)
    with printing(f"The page is complete in {report}" if report else ""):
        tell_warnings([*found.notes, *(f"{one.name}: {one.absent}" for one in references if one.absent)], quiet)
        say(found if json else shown(found, format), as_json=json, quiet=quiet)


def shown(found: Comparison, form: str) -> Any:
    """The comparison in a format."""
    from agentmerge.eval.compare import formats

    if form == "text":
        return tables(found)
    text = {"markdown": formats.markdown, "latex": formats.latex, "csv": formats.comma_separated}[form](found)
    return text.rstrip("\n")


def tables(found: Comparison) -> list[Any]:
    """Tables and sentences for a terminal."""
    from agentmerge.eval.compare import layout
    from agentmerge.eval.compare.formats import remarks

    legend = Prose(LEGEND.format(**layout.legend(found)))
    parts: list[Any] = [_table(grid) for grid in layout.grids(found)]
    parts.insert(1, legend)
    verdict = ["Verdict", *(f"- {one.text}" for one in found.verdict)] if found.verdict else []
    told = [note for note in remarks(found) if note not in found.notes]  # those are warnings, on stderr
    return [*parts, *(Lines(texts) for texts in (verdict, told) if texts)]


class Lines:
    """Lines, each a paragraph whose further lines are set in."""

    def __init__(self, paragraphs: list[str]) -> None:
        self._paragraphs = paragraphs

    def lines(self, width: int) -> list[str]:
        """At most `width` characters each, and no longer than those of a page."""
        import textwrap

        from agentmerge.cli.table import PAGE

        wrap = textwrap.TextWrapper(
            min(width, PAGE), subsequent_indent="  ", break_long_words=False, break_on_hyphens=False
        )
        return [part for text in self._paragraphs for part in wrap.wrap(text)]


def _table(grid: Grid) -> Table:
    table = Table(grid.title, [Column(grid.heads[0], "name"), *map(Column, grid.heads[1:])])
    widths = [max(len(_marks(cells[i])) for _, cells in grid.rows) for i in range(len(grid.heads) - 1)]
    for number, (name, cells) in enumerate(grid.rows):
        if number in grid.breaks:
            table.section()
        table.add(name, *(_text(cell, width) for cell, width in zip(cells, widths, strict=True)))
    return table


def _text(cell: Shown, width: int) -> str:
    interval = f" [{cell.error.replace(' to ', ' ')}]"  # in few characters: tables are to fit side by side
    error = cell.error and (interval if " " in cell.error else f" +- {cell.error}")
    return f"{cell.text}{error}{_marks(cell):<{width}}"


def _marks(cell: Shown) -> str:
    return f"{MARKS[cell.mark]}{'^' if cell.beats else ''}"


def _pairs(option: str, given: list[str] | None) -> dict[str, str]:
    """NAME=VALUE, by name."""
    found: dict[str, str] = {}
    for text in given or []:
        name, equals, value = text.partition("=")
        if not (name and equals and value):
            raise EvalError(f"{option} {text}: not understood", expected="NAME=VALUE")
        if name in found:
            raise EvalError(f"{option}: '{name}' is given twice")
        found[name] = value
    return found


def _folders(option: str, given: list[str] | None) -> dict[str, Path]:
    return {name: Path(folder) for name, folder in _pairs(option, given).items()}
