"""Tables of plain text for people, at any width. No number is ever cut: what does not fit side by side is stacked."""

from __future__ import annotations

import textwrap
from dataclasses import dataclass, field
from itertools import groupby, zip_longest
from typing import TYPE_CHECKING, Literal

from rich.cells import cell_len

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

PAGE = 110
"""Most characters of a line of prose."""
GAP = 2
"""Spaces between two columns."""
LEAST = 24
"""Characters that a column of sentences has at least where it must be wrapped."""
HEADERS = (1000, 24, 16, 1)
"""Characters of a line of a header: the first of them with which the columns fit."""


@dataclass(frozen=True, slots=True)
class Column:
    """One column."""

    name: str
    kind: Literal["name", "number", "text"] = "number"
    """A name stands left, a number right, both in one piece; a text is wrapped between words."""
    spare: bool = False
    """Whether it is left out, and named below the table, where it does not fit in one piece."""


@dataclass
class Table:
    """Rows of cells under a title."""

    title: str
    columns: Sequence[Column]
    rows: list[tuple[str, ...]] = field(default_factory=list)
    breaks: set[int] = field(default_factory=set)
    """Numbers of the rows before which a line is left empty."""
    stacked: bool = False
    """Whether it is stacked at any width, as sentences are best."""

    def add(self, *cells: str) -> None:
        """One more row, a cell for every column; the first one names it."""
        self.rows.append(cells)

    def section(self) -> None:
        """Leave a line empty before the next row."""
        self.breaks.add(len(self.rows))

    @property
    def row_count(self) -> int:
        """How many rows there are."""
        return len(self.rows)

    def lines(self, width: int) -> list[str]:
        """The table in lines of at most `width` characters, but for words that are longer; none ends in a space."""
        every = list(range(len(self.columns)))
        needed = [i for i in every if not self.columns[i].spare]
        sides = {} if self.stacked else {shown: self._fitted(shown, width) for shown in (tuple(every), tuple(needed))}
        fitting = next(((shown, widths) for shown, widths in sides.items() if widths), None)
        if fitting is not None:
            shown, body = fitting[0], self._side_by_side(*fitting)
        else:
            shown = tuple(every if self._fits_stacked(every, width) else needed)
            body = self._stacked(shown, width)
        absent = [self.columns[i].name for i in every if i not in shown]
        told = f"Too wide to be shown here, but in --json: {'; '.join(absent)}" if absent else ""
        return [line.rstrip() for line in (*_wrapped(self.title, width), *body, *_wrapped(told, width))]

    def _fitted(self, shown: Sequence[int], width: int) -> list[int] | None:
        """The width of each of the columns side by side; None where they do not fit."""
        free = width - GAP * (len(shown) - 1)
        for most in HEADERS:
            widths = [self._width(i, most) for i in shown]
            texts = [n for n, i in enumerate(shown) if self.columns[i].kind == "text"]
            least = [self._least(i, most) if n in texts else widths[n] for n, i in enumerate(shown)]
            if sum(least) <= free:
                return _shared(widths, least, texts, free)
        return None

    def _width(self, i: int, header: int) -> int:
        """What a column takes in one piece, its name in lines of at most `header`."""
        return max([cell_len(row[i]) for row in self.rows] + [_longest_line(self.columns[i].name, header)])

    def _least(self, i: int, header: int) -> int:
        """What a column of texts takes at least."""
        words = [cell_len(word) for row in self.rows for word in row[i].split()]
        return max([min(LEAST, self._width(i, header)), _longest_line(self.columns[i].name, header), *words])

    def _side_by_side(self, shown: Sequence[int], widths: Sequence[int]) -> Iterator[str]:
        yield from self._row([self.columns[i].name for i in shown], shown, widths, last=True)
        yield (" " * GAP).join("-" * width for width in widths)
        for number, row in enumerate(self.rows):
            if number in self.breaks:
                yield ""
            yield from self._row([row[i] for i in shown], shown, widths)

    def _row(
        self, cells: Sequence[str], shown: Sequence[int], widths: Sequence[int], last: bool = False
    ) -> Iterator[str]:
        """A row in lines; `last` puts cells of fewer lines at the bottom, as headers are."""
        parts = [_wrapped(cell, width) or [""] for cell, width in zip(cells, widths, strict=True)]
        height = max(map(len, parts))
        parts = [[""] * (height - len(part)) + part for part in parts] if last else parts
        for line in zip_longest(*parts, fillvalue=""):
            yield (" " * GAP).join(
                _padded(cell, width, self.columns[i].kind) for cell, width, i in zip(line, widths, shown, strict=True)
            )

    def _fits_stacked(self, shown: Sequence[int], width: int) -> bool:
        labels = max(cell_len(self.columns[i].name) for i in shown)
        spare = [i for i in shown if self.columns[i].spare]
        return all(GAP + labels + GAP + cell_len(row[i]) <= width for row in self.rows for i in spare)

    def _stacked(self, shown: Sequence[int], width: int) -> Iterator[str]:
        """Row after row, a line for every cell that is not empty, below the row's name."""
        inner = [i for i in shown if i]
        labels = max((cell_len(self.columns[i].name) for i in inner), default=0)
        aligned = all(
            GAP + labels + GAP + (LEAST if self.columns[i].kind == "text" else cell_len(row[i])) <= width
            for row in self.rows
            for i in inner
        )
        for number, row in enumerate(self.rows):
            if number:
                yield ""
            yield row[0]
            for i in (i for i in inner if row[i]):
                name = self.columns[i].name
                label = f"{_padded(name, labels, 'name')}{' ' * GAP}" if aligned else f"{name}: "
                yield from _hanging(label, row[i], width)


def _hanging(label: str, text: str, width: int) -> Iterator[str]:
    """Text behind a label, further lines below its first word, or a little inward where that leaves no room."""
    inward = GAP + cell_len(label)
    inward = inward if width - inward >= LEAST else 2 * GAP
    for number, line in enumerate(text.splitlines()):
        begin = GAP if number == 0 else inward
        yield from textwrap.wrap(
            f"{label}{line}" if number == 0 else line.strip(),
            max(width, inward + 1),
            initial_indent=" " * begin,
            subsequent_indent=" " * inward,
            break_long_words=False,
            break_on_hyphens=False,
        )


def _shared(widths: Sequence[int], least: Sequence[int], texts: Sequence[int], free: int) -> list[int]:
    """The least widths, and what is left shared among the texts, the short ones first."""
    found, rest = list(least), free - sum(least)
    wants = sorted(texts, key=lambda n: widths[n] - least[n])
    for left, n in zip(range(len(wants), 0, -1), wants, strict=True):
        more = min(widths[n] - least[n], rest // left)
        found[n] += more
        rest -= more
    return found


def _wrapped(text: str, width: int) -> list[str]:
    """In lines between words; a longer word stays whole."""
    lines = text.splitlines()
    return [
        part
        for line in lines
        for part in textwrap.wrap(line, max(width, 1), break_long_words=False, break_on_hyphens=False)
    ]


def _longest_line(text: str, width: int) -> int:
    return max(map(cell_len, _wrapped(text, width)), default=0)


def _padded(cell: str, width: int, kind: str) -> str:
    space = " " * (width - cell_len(cell))
    return space + cell if kind == "number" else cell + space


@dataclass(frozen=True)
class Prose:
    """Paragraphs for people; lines that are set in, and the empty ones, stay as they are."""

    text: str

    def lines(self, width: int) -> list[str]:
        """The text in lines of at most `width` characters, and no longer than those of a page."""
        found: list[str] = []
        for indented, lines in groupby(self.text.strip().splitlines(), key=lambda line: line[:1] in ("", " ")):
            group = list(lines)
            found += group if indented else _wrapped(" ".join(group), min(width, PAGE))
        return found
