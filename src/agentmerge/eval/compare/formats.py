"""A comparison as Markdown, LaTeX and CSV."""

from __future__ import annotations

import csv
import io
import re
from typing import TYPE_CHECKING

from agentmerge.eval.compare.layout import grids, legend

if TYPE_CHECKING:
    from collections.abc import Callable

    from agentmerge.eval.compare.layout import Grid, Shown
    from agentmerge.eval.compare.rows import Comparison

SPECIAL = re.compile(r"[&%$#_{}~^\\]")
CODE = re.compile(r"(`[^`]*`)")
BAR = re.compile(r"(?<!\\)\|")
NAMED = {"~": r"\textasciitilde{}", "^": r"\textasciicircum{}", "\\": r"\textbackslash{}"}


def markdown(found: Comparison) -> str:
    """Tables and the verdict; bold is best, underlined second best, an arrow above the specialist."""
    marks = legend(found)
    lines = [f"**best**: {marks['best']}; <u>second</u>: {marks['second']}; ↑: {marks['beats']}.", ""]
    for grid in grids(found):
        lines += [f"### {_escaped(grid.title)}", "", *_markdown_table(grid), ""]
    lines += ["### Verdict", "", *(f"- {_escaped(one.text)}" for one in found.verdict), ""]
    lines += [f"- {_escaped(note)}" for note in remarks(found)]
    return "\n".join(lines).rstrip() + "\n"


def latex(found: Comparison) -> str:
    r"""Tables for booktabs; \textbf is best, \underline second best, \uparrow above the specialist."""
    marks = legend(found)
    lines = [f"% \\textbf: {marks['best']}; \\underline: {marks['second']}; $\\uparrow$: {marks['beats']}."]
    for grid in grids(found):
        spec = "l" + "r" * (len(grid.heads) - 1)
        lines += [
            "", r"\begin{table}", r"\centering", rf"\caption{{{_tex(grid.title)}}}", rf"\begin{{tabular}}{{{spec}}}",
            r"\toprule", _tex_row([_tex(head) for head in grid.heads]), r"\midrule",
        ]  # fmt: skip
        for number, (name, cells) in enumerate(grid.rows):
            lines += [r"\midrule"] * (number in grid.breaks)
            lines.append(_tex_row([_tex(name), *map(_tex_cell, cells)]))
        lines += [r"\bottomrule", r"\end{tabular}", r"\end{table}"]
    return "\n".join([*lines, *(f"% {note}" for note in remarks(found))]) + "\n"


def comma_separated(found: Comparison) -> str:
    """A line per model and unit, all numbers as they are, then the published ones."""
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(
        ["row", "role", "unit", "label", "mean", "error", "n", "rank", "beats", "difference", "low", "high", "p"]
    )
    differences = {(one.row, one.unit): one for one in found.differences}
    for cell in found.rows():
        one = differences.get((cell["row"], cell["unit"]))
        numbers = [one.value, one.low, one.high, one.p] if one else [None] * 4
        writer.writerow(
            [cell[key] for key in ("row", "role", "unit", "label", "mean", "error", "n", "rank", "beats")] + numbers
        )
    labels = {unit.id: unit.label for unit in found.units}
    for row in found.references:
        scores = {**row.scores, **row.elsewhere, **({"mean": row.mean} if row.mean is not None else {})}
        for unit, score in scores.items():
            writer.writerow(
                [f"{row.label} [{row.source}]", "reference", unit, labels.get(unit, unit), score, *[None] * 8]
            )
    return text.getvalue()


def remarks(found: Comparison) -> list[str]:
    """Notes, and where published rows come from."""
    tables = dict.fromkeys(f"[{row.source}] {row.table}." for row in found.references)
    return [*found.notes, *tables]


def _markdown_table(grid: Grid) -> list[str]:
    rows = [[_in_table(name), *map(_markdown_cell, cells)] for name, cells in grid.rows]
    heads = [_in_table(head) for head in grid.heads]
    return [f"| {' | '.join(row)} |" for row in (heads, ["---", *["---:"] * (len(heads) - 1)], *rows)]


def _markdown_cell(cell: Shown) -> str:
    return _cell(cell, {"best": "**{}**", "second": "<u>{}</u>", "": "{}"}, " ↑", "±", str)


def _tex_cell(cell: Shown) -> str:
    marks = {"best": r"\textbf{{{}}}", "second": r"\underline{{{}}}", "": "{}"}
    return _cell(cell, marks, r"$\uparrow$", r"$\pm$", _tex)


def _cell(cell: Shown, marks: dict[str, str], arrow: str, plus_minus: str, quote: Callable[[str], str]) -> str:
    number = marks[cell.mark].format(quote(cell.text))
    error = cell.error and (f" ({quote(cell.error)})" if " " in cell.error else f" {plus_minus} {cell.error}")
    return f"{number}{error}{arrow if cell.beats else ''}"


def _escaped(text: str) -> str:
    """Plain text as Markdown; what stands between backticks is code, in which nothing is escaped."""
    return "".join(part if place % 2 else _escaped_plain(part) for place, part in enumerate(CODE.split(text)))


def _escaped_plain(text: str) -> str:
    return text.replace("|", "\\|").replace("_", "\\_").replace("<", "&lt;").replace("*", "\\*")


def _in_table(text: str) -> str:
    """A bar ends a table's cell in code, too."""
    return BAR.sub(r"\\|", _escaped(text))


def _tex(text: str) -> str:
    return SPECIAL.sub(lambda found: NAMED.get(found[0], "\\" + found[0]), text)


def _tex_row(cells: list[str]) -> str:
    return " & ".join(cells) + r" \\"
