"""The parameters of a mergekit file: which ones a method reads, the forms of a value, and the value for one tensor.

A parameter stands, strongest first, at a model of a slice, at the slice, or at the top. Its value is a number, a list
of numbers (a gradient over the slice's layers, interpolated), or a list of {filter, value}: the first one whose filter
is a part of the tensor's name counts ("*" or no filter is every tensor); where none fits, the next level is asked.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from math import isfinite
from typing import TYPE_CHECKING, Any

from agentmerge.errors import Note, Problem, RecipeError, Where, did_you_mean

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

READ: Mapping[str, frozenset[str]] = {
    "linear": frozenset({"weight", "normalize"}),
    "task_arithmetic": frozenset({"weight", "normalize", "lambda"}),
    "ties": frozenset({"weight", "density", "normalize", "lambda", "rescale"}),
    "dare_linear": frozenset({"weight", "density", "normalize", "lambda", "rescale"}),
    "dare_ties": frozenset({"weight", "density", "normalize", "lambda", "rescale"}),
    "ram": frozenset({"epsilon"}),
    "ramplus_tl": frozenset({"r", "alpha", "epsilon"}),
}
"""By mergekit's methods that have an equal here: the parameters that change what the method gives."""

OF_MODELS = ("weight", "density")
"""Those of them that may differ from model to model; mergekit looks for the others at the slice and at the top only."""

KNOWN = frozenset().union(*READ.values(), {"int8_mask", "gamma", "t", "select_topk", "filter_wise"})
"""Parameters of any of mergekit's methods that may stand in a configuration of another."""


@dataclass
class Problems:
    """What one file says that has no equal here, collected to be told all at once, and what is worth a note."""

    file: str
    problems: list[Problem] = field(default_factory=list)
    notes: list[Note] = field(default_factory=list)

    def refuse(
        self, key: str, value: object, why: str = "", *, expected: str = "", todo: str = "", nearest: str = ""
    ) -> None:
        """Add a problem.

        Args:
            key: the path of the field.
            value: what stands there; a text is shown as it is.
            why: whole sentences; none where `expected` says it.
            expected: what could stand there.
            todo: whole sentences.
            nearest: what comes nearest here, in place of `todo`.
        """
        found = f"{self.file}: {key}: found {value if isinstance(value, str) else repr(value):.160};"
        todo = f"Nearest: {nearest}." if nearest else todo
        self.problems.append(Problem(f"{found} {why}".rstrip(), expected, todo, Where(source=self.file, path=key)))

    def note(self, found: str) -> None:
        """Add once what is different here, or left out without harm."""
        note = Note(found, where=Where(source=self.file))
        if note not in self.notes:
            self.notes.append(note)

    def stop(self) -> None:
        """Raise RecipeError with every problem so far on a line of its own; return where there are none."""
        if self.problems:
            raise RecipeError(*dict.fromkeys(self.problems))


def check_parameter(method: str, name: str, entry: tuple[str, Any], problems: Problems, *, here: bool) -> None:
    """Refuse a parameter that nothing knows or that has no value; note one that changes nothing.

    Args:
        method: mergekit's.
        name: of the parameter.
        entry: where it stands, and its value.
        problems: gets what is wrong.
        here: whether the method reads a parameter of this name where it stands.
    """
    where, setting = entry
    if name not in KNOWN:
        problems.refuse(where, setting, "unknown parameter.", todo=did_you_mean(name, READ[method]).strip())
    elif name == "int8_mask":
        problems.note(f"{where}: left out; it saves memory in mergekit and changes no number")
    elif name not in READ[method]:
        problems.note(f"{where}: left out; mergekit's {method} does not use it")
    elif not here:
        why = "it is the base's" if name in OF_MODELS else "mergekit reads it at a slice or at the top only"
        problems.note(f"{where}: left out; {why}")
    elif not is_setting(setting):
        problems.refuse(where, setting, expected="a number, a list of numbers, or a list of {filter, value}")


def is_number(value: Any) -> bool:
    """Whether a value is one finite number; true is 1, as in mergekit, and "1e-5" a number, as in our recipes."""
    try:
        return isinstance(value, int | float | str) and isfinite(float(value))
    except ValueError:
        return False


def is_gradient(value: Any) -> bool:
    """Whether a value is a list of numbers."""
    return isinstance(value, list) and bool(value) and all(is_number(item) for item in value)


def entries(value: Any) -> list[dict[str, Any]] | None:
    """The {filter, value} entries of a conditional setting; None where it is not one."""
    listed = [value] if isinstance(value, dict) else value
    fits = isinstance(listed, list) and all(
        isinstance(e, dict) and "value" in e and set(e) <= {"filter", "value"} for e in listed
    )
    return listed if fits and listed else None


def is_setting(value: Any) -> bool:
    """Whether a value has one of the forms above."""
    if is_number(value) or is_gradient(value):
        return True
    return all(
        (is_number(e["value"]) or is_gradient(e["value"])) and isinstance(e.get("filter", ""), str | None)
        for e in entries(value) or [{"value": None}]
    )


def filters_of(value: Any) -> Iterator[str]:
    """The filters of a setting that do not mean every tensor."""
    for entry in entries(value) or ():
        if entry.get("filter") not in (None, "*", ""):
            yield entry["filter"]


def has_gradient(value: Any) -> bool:
    """Whether a setting changes from layer to layer."""
    return is_gradient(value) or any(is_gradient(entry["value"]) for entry in entries(value) or ())


def value_at(value: Any, tensor: str, t: float) -> float | None:
    """The value for one tensor at the place t of the gradient, 0 to 1; None where no filter fits."""
    if is_number(value):
        return float(value)
    if is_gradient(value):
        return interpolated([float(number) for number in value], t)
    for entry in entries(value) or ():
        if entry.get("filter") in (None, "*") or entry["filter"] in tensor:
            return value_at(entry["value"], tensor, t)
    return None


def interpolated(numbers: list[float], t: float) -> float:
    """Piecewise linear between numbers that are spread evenly over [0, 1]."""
    place = t * (len(numbers) - 1)
    left = min(int(place), len(numbers) - 1)
    right = min(left + 1, len(numbers) - 1)
    return numbers[left] + (place - left) * (numbers[right] - numbers[left])
