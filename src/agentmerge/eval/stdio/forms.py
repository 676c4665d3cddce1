r"""How the values of a function's tests are written to standard input and output, for Python programs.

The example of the paper's appendix B.1 (and of CURE's data) is kept: a list of numbers is its length on a line and its
elements on the next, `sum_function([1, 2, 3, 4, 5]) == 15` is "5\\n1 2 3 4 5\\n" and "15". What it does not show is in
`FORMS`. A form fits all values of one place, over all tests of a task.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

if TYPE_CHECKING:
    from collections.abc import Sequence

Kind = Literal["whole", "decimal", "number", "truth", "text", "words", "lines", "rows", "literal"]
Element = Literal["whole", "decimal", "number", "word"]
FORMS: dict[Kind, tuple[str, str]] = {
    "whole": ("an integer, on a line", "an integer"),
    "decimal": ("a decimal number, on a line", "a decimal number"),
    "number": ("a number, on a line", "a number, without decimals where it is an integer"),
    "truth": ("True or False, on a line", "True or False"),
    "text": ("a text, on a line", "a text"),
    "words": (
        "the number of {elements} on a line, and the {elements} on the next, separated by spaces",
        "{elements}, separated by spaces",
    ),
    "lines": ("the number of texts on a line, and each text on a line of its own", "texts, each on a line of its own"),
    "rows": (
        "the number of rows on a line, and each row as the number of its {elements} on a line and the {elements} on "
        "the next, separated by spaces",
        "rows of {elements}, each row on a line of its own, separated by spaces",
    ),
    "literal": (
        "a Python literal, on a line",
        "a Python literal, with the entries of dicts and sets in the order of their text",
    ),
}
"""What a form looks like in the input, and in the output, in words."""
_ELEMENTS: dict[Element, str] = {
    "whole": "integers",
    "decimal": "decimal numbers",
    "number": "numbers",
    "word": "words",
}


@dataclass(frozen=True)
class Form:
    """How the values of one place are written."""

    kind: Kind
    element: Element = "whole"
    """Of words and rows."""
    outer: Literal["list", "tuple"] = "list"
    """What Python takes them for."""
    inner: Literal["list", "tuple"] = "list"
    """What Python takes a row for."""

    def words(self, place: Literal["input", "output"]) -> str:
        """The form, said to a programmer."""
        return FORMS[self.kind][place == "output"].format(elements=_ELEMENTS[self.element])

    def written(self, value: Any) -> str:
        """A value as the lines of an input, without the last line's end."""
        if self.kind == "words":
            return _counted(value)
        if self.kind == "lines":
            return "\n".join([str(len(value)), *value])
        if self.kind == "rows":
            return "\n".join([str(len(value)), *map(_counted, value)])
        return literal(value) if self.kind == "literal" else str(value)

    def printed(self, value: Any) -> str:
        """A value as an output, which is what `solution.program` prints of it."""
        if self.kind == "words":
            return " ".join(str(plain(one, self.element)) for one in value)
        if self.kind == "lines":
            return "\n".join(value)
        if self.kind == "rows":
            return "\n".join(" ".join(str(plain(one, self.element)) for one in row) for row in value)
        return literal(value) if self.kind == "literal" else str(plain(value, self.kind))


def form_of(values: Sequence[Any]) -> Form:
    """The form of all values of one place; those that fit no other are literals."""
    return _scalar(values) or _list_form("list", values) or _list_form("tuple", values) or Form("literal")


def plain(value: Any, kind: Kind | Element) -> Any:
    """A value as its place has it: Python takes 1, 1.0 and True for equal, and so does an assert."""
    if kind == "decimal":
        return float(value) if isinstance(value, int) else value
    if kind == "truth":
        return bool(value) if value in (0, 1) else value
    if kind in ("whole", "number") and isinstance(value, bool | float) and value % 1 == 0:
        return int(value)
    return value


def literal(value: Any) -> str:
    """A value as Python reads it; the entries of dicts and sets are in the order of their texts."""
    if isinstance(value, dict):
        return "{" + ", ".join(sorted(literal(key) + ": " + literal(held) for key, held in value.items())) + "}"
    if isinstance(value, set | frozenset):
        return "{" + ", ".join(sorted(map(literal, value))) + "}" if value else "set()"
    if isinstance(value, list):
        return "[" + ", ".join(map(literal, value)) + "]"
    if isinstance(value, tuple):
        return "(" + ", ".join(map(literal, value)) + (",)" if len(value) == 1 else ")")
    return repr(value)


def _counted(value: Sequence[Any]) -> str:
    return f"{len(value)}\n{' '.join(map(str, value))}"


def _scalar(values: Sequence[Any]) -> Form | None:
    if _all(values, bool):
        return Form("truth")
    if _all(values, int):
        return Form("whole")
    if _all(values, float):
        return Form("decimal")
    if _all(values, int, float):
        return Form("number")
    return Form("text") if _all(values, str) and all(map(_is_line, values)) else None


def _list_form(outer: Literal["list", "tuple"], values: Sequence[Any]) -> Form | None:
    """Of lists or tuples whose elements are alike; where all are empty, of whole numbers."""
    if not _all(values, list if outer == "list" else tuple):
        return None
    elements = [element for value in values for element in value]
    if element := _element(elements):
        return Form("words", element, outer)
    if _all(elements, str) and all(map(_is_line, elements)):
        return Form("lines", outer=outer)
    for inner in ("list", "tuple"):
        row = _list_form(inner, elements) if elements and isinstance(elements[0], list | tuple) else None
        if row is not None and row.kind == "words":
            return Form("rows", row.element, outer, row.outer)
    return None


def _element(elements: Sequence[Any]) -> Element | None:
    if _all(elements, int):
        return "whole"
    if _all(elements, float):
        return "decimal"
    if _all(elements, int, float):
        return "number"
    return "word" if _all(elements, str) and all(element.split() == [element] for element in elements) else None


def _all(values: Sequence[Any], *types: type) -> bool:
    """Whether every value is just of these types; a truth value is no int."""
    return all(type(value) in types for value in values)


def _is_line(text: str) -> bool:
    """Whether a program that reads a line reads this text, and one that compares lines sees all of it."""
    return text.isprintable() and text == text.strip()
