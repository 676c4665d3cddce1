"""The value of one mergekit parameter for one tensor: numbers, filters, gradients, and which level wins.

A parameter stands, strongest first, at a model of a slice, at the slice, or at the top. Its value is a number, a list
of numbers (a gradient over the slice's layers, interpolated), or a list of {filter, value}: the first one whose filter
is a part of the tensor's name counts ("*" or no filter is every tensor); where none fits, the next level is asked.
"""

from __future__ import annotations

from math import isfinite
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Iterator

LAYERS_UNKNOWN = (
    "a gradient runs over the layers of the model, whose number is not known. Say it with --layers, "
    "or write `slices` with layer_range instead of `models`."
)


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
    found = [value] if isinstance(value, dict) else value
    fits = isinstance(found, list) and all(
        isinstance(e, dict) and "value" in e and set(e) <= {"filter", "value"} for e in found
    )
    return found if fits and found else None


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
