"""The parameters of a mergekit file: which ones a method reads, the forms of a value, and the value for one tensor.

A parameter stands, strongest first, at a model of a slice, at the slice, or at the top. Its value is a number, a list
of numbers (a gradient over the slice's layers, interpolated), or a list of {filter, value}: the first one whose filter
is a part of the tensor's name counts ("*" or no filter is every tensor); where none fits, the next level is asked.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from difflib import get_close_matches
from math import isfinite
from typing import TYPE_CHECKING, Any

from agentmerge.errors import Note, Problem, RecipeError, Where

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping

READ: Mapping[str, frozenset[str]] = {
    "linear": frozenset({"weight", "normalize"}),
    "task_arithmetic": frozenset({"weight", "normalize", "lambda"}),
    "ties": frozenset({"weight", "density", "normalize", "lambda", "rescale"}),
    "dare_linear": frozenset({"weight", "density", "normalize", "lambda", "rescale"}),
    "dare_ties": frozenset({"weight", "density", "normalize", "lambda", "rescale"}),
    **dict.fromkeys(
        ("breadcrumbs", "breadcrumbs_ties"),
        frozenset({"weight", "density", "gamma", "normalize", "lambda", "rescale"}),
    ),
    **dict.fromkeys(
        ("della", "della_linear"), frozenset({"weight", "density", "epsilon", "normalize", "lambda", "rescale"})
    ),
    "slerp": frozenset({"t"}),
    "nuslerp": frozenset({"weight", "nuslerp_flatten", "nuslerp_row_wise"}),
    "multislerp": frozenset({"weight", "normalize_weights", "eps"}),
    "model_stock": frozenset({"filter_wise"}),
    "sce": frozenset({"select_topk"}),
    "nearswap": frozenset({"t"}),
    "ram": frozenset({"epsilon"}),
    "ramplus_tl": frozenset({"r", "alpha", "epsilon"}),
}
"""By mergekit's methods that have an equal here: the parameters that change what the method gives."""

OF_MODELS = ("weight", "density", "gamma", "epsilon")
"""Those of them that may differ from model to model; mergekit looks for the others at the slice and at the top only."""

OF_ALL = (("ram", "epsilon"), ("ramplus_tl", "epsilon"))
"""Methods, and what is the same for all models there, though others have it of each."""

KNOWN = frozenset().union(*READ.values(), {"int8_mask", "max_iter", "tol"})
"""Parameters of any of mergekit's methods that may stand in a configuration of another."""

OUTSIDE = ("dtype", "out_dtype", "tokenizer_source", "base_model", "merge_method")
"""Keys of the top that people write among the parameters, where mergekit ignores them."""

NEARLY = 0.75
"""How alike two words are, 0 to 1, of which one is taken for the other misspelt."""


@dataclass
class Problems:
    """What one file says that has no equal here, collected to be told all at once, and what is worth a note."""

    file: str
    problems: list[Problem] = field(default_factory=list)
    notes: list[Note] = field(default_factory=list)

    def refuse(
        self, key: str, value: object, why: str = "", *, expected: str = "", todo: str = "", nearest: str = ""
    ) -> None:
        """Add a problem, once.

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
        problem = Problem(f"{found} {why}".rstrip(), expected, todo, Where(source=self.file, path=key))
        if problem not in self.problems:
            self.problems.append(problem)

    def lack(self, key: str, todo: str) -> None:
        """Add a field that must be there, once."""
        where = Where(source=self.file, path=key)
        problem = Problem(f"{self.file}: {key}: missing", todo=todo, where=where)
        if problem not in self.problems:
            self.problems.append(problem)

    def note(self, found: str) -> None:
        """Add once what is different here, or left out without harm."""
        note = Note(found, where=Where(source=self.file))
        if note not in self.notes:
            self.notes.append(note)

    def about(self, path: str) -> bool:
        """Whether there is a problem with a field or with one inside of it."""
        return any(f"{problem.where.path}.".startswith(f"{path}.") for problem in self.problems)

    def stop(self) -> None:
        """Raise RecipeError with every problem on a line of its own, and the notes as its notes; return without any."""
        if self.problems:
            error = RecipeError(*self.problems)
            for note in self.notes:
                error.add_note(str(note))
            raise error


def checked(
    method: str, where: str, parameters: Any, problems: Problems, *, reads: Callable[[str], bool]
) -> Mapping[str, Any]:
    """The parameters of one mapping that have a value: refuse what has none, note what changes nothing.

    Args:
        method: mergekit's.
        where: the path of the mapping.
        parameters: what stands there.
        problems: gets what is wrong. A weight that is wrong counts as 1 from there on, so that nothing else is told of
            it; any other parameter as not said.
        reads: whether the method reads a parameter of this name where it stands.
    """
    if not isinstance(parameters, dict):
        problems.refuse(where, parameters, expected="a mapping of parameters")
        return {}
    good = {}
    for name, setting in parameters.items():
        if _check_parameter(method, str(name), (f"{where}.{name}", setting), problems, here=reads(str(name))):
            good[str(name)] = setting
        elif name == "weight":
            good["weight"] = 1.0
    return good


def _check_parameter(method: str, name: str, entry: tuple[str, Any], problems: Problems, *, here: bool) -> bool:
    """Whether a parameter has a value that the method uses."""
    where, setting = entry
    if name not in KNOWN:
        _check_unknown(name, entry, READ.get(method, KNOWN), problems)
    elif name == "int8_mask":
        problems.note(f"{where}: left out; it saves memory in mergekit and changes no number")
    elif not method:
        return False
    elif name not in READ[method]:
        problems.note(f"{where}: left out; mergekit's {method} does not use it")
    elif not here:
        why = (
            "it is the base's"
            if name in OF_MODELS and (method, name) not in OF_ALL
            else "mergekit reads it at a slice or at the top only"
        )
        problems.note(f"{where}: left out; {why}")
    elif not is_setting(setting):
        problems.refuse(where, setting, expected="a number, a list of numbers, or a list of {filter, value}")
    else:
        return True
    return False


def _check_unknown(name: str, entry: tuple[str, Any], known: Iterable[str], problems: Problems) -> None:
    where, setting = entry
    if (meant := misspelt(name, known)) is not None:
        problems.refuse(where, setting, "unknown parameter.", todo=f"Did you mean '{meant}'?")
    else:
        home = "; it belongs outside of `parameters`" if name in OUTSIDE else ""
        problems.note(f"{where}: left out, as mergekit ignores it{home}")


def check_keys(data: Mapping[Any, Any], where: str, known: Iterable[str], problems: Problems) -> None:
    """Refuse a key that looks misspelt, and note one that mergekit ignores.

    Args:
        data: a mapping of the configuration.
        where: its path; "" is the top.
        known: its keys.
        problems: gets what is wrong.
    """
    for key in data.keys() - set(known):
        path = f"{where}.{key}".removeprefix(".")
        if (meant := misspelt(str(key), known)) is not None:
            problems.refuse(path, data[key], "unknown key.", todo=f"Did you mean '{meant}'?")
        elif str(key) in KNOWN:
            problems.note(f"{path}: left out, as mergekit ignores it here; it belongs under `parameters`")
        elif (meant := misspelt(str(key), KNOWN)) is not None:
            problems.refuse(path, data[key], "unknown key.", todo=f"Did you mean '{meant}', under `parameters`?")
        else:
            problems.note(f"{path}: left out, as mergekit ignores it")


def misspelt(word: str, known: Iterable[str]) -> str | None:
    """The known name that a word is nearly; None where it is like none, so meant to be something else."""
    plain = word.lower().replace("-", "_")
    return next(iter(get_close_matches(plain, sorted(known), n=1, cutoff=NEARLY)), None)


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
