"""What can go wrong, each with the place, what was found, what was expected and what to do. Knows no work."""

from __future__ import annotations

import re
import sys
from contextlib import contextmanager
from dataclasses import dataclass, replace
from difflib import get_close_matches
from typing import TYPE_CHECKING, Any, Literal, Self

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping

    from pydantic import ValidationError


@dataclass(frozen=True, slots=True)
class Role:
    """Who a source is in a merge: the base, what its changes are put onto, or the agent of a name."""

    agent: str = ""
    """The agent's name; "" is the base."""
    beside: str = ""
    """What of the agent it is beside its weights, for example "importance"; of the base, "onto" or "keep"."""

    def __str__(self) -> str:
        if self.beside:
            return f"agents.{self.agent}.{self.beside}" if self.agent else self.beside
        return f"agent '{self.agent}'" if self.agent else "base"

    @property
    def name(self) -> str:
        """What stands for it in a record: "base", the agent's name, or that and what lies beside its weights."""
        return ".".join(part for part in (self.agent, self.beside) if part) or "base"


BASE, ONTO = Role(), Role(beside="onto")


def role_of(name: str) -> Role:
    """The role that a recipe and a record call `name`: "base", "onto" or an agent's name."""
    return {"base": BASE, "onto": ONTO}.get(name) or Role(name)


@dataclass(frozen=True, slots=True)
class Where:
    """The place that a problem or a note is about; what is not known stays empty."""

    role: Role | None = None
    """Whose source; None for the recipe and everything else."""
    source: str = ""
    """What the user wrote for it."""
    tensor: str = ""
    path: str = ""
    """A file or folder, or the path of a field in a recipe."""

    def filled(self, other: Where) -> Where:
        """This place with what is unknown taken from another."""
        return Where(
            self.role or other.role, self.source or other.source, self.tensor or other.tensor, self.path or other.path
        )

    def calling(self, names: Mapping[str, str]) -> Where:
        """This place, in whose path folders have other names; see `MergeError.calling`."""
        return replace(self, path=_called(self.path, names))


NOWHERE = Where()


@dataclass(frozen=True, slots=True)
class Problem:
    """What is wrong; its text is "found, expected expected. todo"."""

    found: str
    """What is there, with the place in its words. Where it ends a sentence or a line, so does its text: ";", "." and a
    line break are kept and taken for the comma."""
    expected: str = ""
    todo: str = ""
    """Whole sentences."""
    where: Where = NOWHERE
    named: bool = False
    """Whether its text begins with the role: "base: "."""

    def __str__(self) -> str:
        text = f"{self.where.role}: {self.found}" if self.named else self.found
        if self.expected and text.endswith((".", "\n")):
            text = f"{text.rstrip(' ')}{'' if text.endswith(chr(10)) else ' '}Expected {self.expected}"
        elif self.expected:
            text += f" expected {self.expected}" if text.endswith(";") else f", expected {self.expected}"
        if not self.todo:
            return f"{text}." if self.expected and not text.endswith((".", "?")) else text
        return f"{text} {self.todo}" if text.endswith((".", "?", ":", "!")) else f"{text}. {self.todo}"

    def calling(self, names: Mapping[str, str]) -> Self:
        """The same problem, in which folders have other names; see `MergeError.calling`."""
        found, expected, todo = (_called(text, names) for text in (self.found, self.expected, self.todo))
        return replace(self, found=found, expected=expected, todo=todo, where=self.where.calling(names))


@dataclass(frozen=True, slots=True)
class Note:
    """Something worth knowing that stops nothing."""

    found: str
    todo: str = ""
    where: Where = NOWHERE
    severity: Literal["warning", "note"] = "warning"
    """A warning is told with every merge; a note by `check` alone."""
    named: bool = False
    """Whether its text begins with the role: "base: "."""

    def __str__(self) -> str:
        text = f"{self.where.role}: {self.found}" if self.named else self.found
        return f"{text} {self.todo}" if self.todo else text

    def calling(self, names: Mapping[str, str]) -> Self:
        """The same note, in which folders have other names; see `MergeError.calling`."""
        found, todo = _called(self.found, names), _called(self.todo, names)
        return replace(self, found=found, todo=todo, where=self.where.calling(names))


def _called(text: str, names: Mapping[str, str]) -> str:
    """A text with other names in the places of some; the longest first, as one may be part of another."""
    for old, new in sorted(names.items(), key=lambda pair: -len(pair[0])):
        text = text.replace(old, new)
    return text


class MergeError(Exception):
    """The user's input can't be merged as asked; the command line prints it calmly and exits with 2.

    Raise it with the parts of a Problem, or with Problems that were found together.
    """

    def __init__(
        self, found: str | Problem, *more: Problem, expected: str = "", todo: str = "", where: Where = NOWHERE
    ) -> None:
        """See the class.

        Args:
            found: the first problem, or what it found.
            more: problems that were found together with it.
            expected: of the first problem, as are `todo` and `where`.
            todo: whole sentences.
            where: the place.
        """
        first = found if isinstance(found, Problem) else Problem(found, expected, todo, where)
        self.problems = (first, *more)
        super().__init__("\n".join(map(str, self.problems)))

    def located(self, where: Where) -> Self:
        """The same error, of which is known whose source, which tensor or which file it is about."""
        return type(self)(*(replace(problem, where=problem.where.filled(where)) for problem in self.problems))

    def calling(self, names: Mapping[str, str]) -> Self:
        """The same error, in which folders have the names that are known to whoever reads it, by their paths."""
        return type(self)(*(problem.calling(names) for problem in self.problems)) if names else self

    def named(self) -> Self:
        """The same error, whose text begins with the role of its first problem."""
        first, *more = self.problems
        return type(self)(replace(first, named=True), *more)


@contextmanager
def about(where: Where) -> Iterator[None]:
    """Errors of what is done inside know whose source, which tensor or which file they are about."""
    try:
        yield
    except MergeError as error:
        raise error.located(where) from error


@contextmanager
def calling(names: Mapping[str, str]) -> Iterator[None]:
    """Errors of what is done inside have other names for some folders; see `MergeError.calling`."""
    try:
        yield
    except MergeError as error:
        if not names:
            raise
        named = error.calling(names)
        for note in getattr(error, "__notes__", ()):
            named.add_note(note)
        raise named from error


class RecipeError(MergeError, ValueError):
    """A recipe, option or setting says something impossible; the message carries its path."""


class SourceError(MergeError, ValueError):
    """A checkpoint's files are not what a checkpoint is made of."""


class SourceNotFoundError(SourceError, FileNotFoundError):
    """A file or folder that a recipe or an index names is not there."""


class AlignmentError(MergeError, ValueError):
    """The base and an agent do not have the same tensors."""


class DataError(MergeError, ArithmeticError):
    """The numbers themselves forbid the merge: NaN, inf, overflow, an unchanged agent."""


class OutputError(MergeError, OSError):
    """The output can't be written where it was asked for."""


class SurveyError(MergeError, ValueError):
    """A saved survey does not belong to these sources or settings."""


class EvalError(MergeError, ValueError):
    """A model can't be evaluated as asked: data or a harness is missing, a server fails, a setting is impossible."""


LINE = 80
"""Characters of a value in a message."""
_UNION_TAG = re.compile(r".*\[.*\]|constrained-\w+")
"""What pydantic puts into a path beside names: "literal['auto']", "constrained-int", "[key]"."""


def did_you_mean(word: str, known: Iterable[str]) -> str:
    """A hint for a misspelt name: " Did you mean 'ram_plus'?" or, when nothing is near, the known names."""
    names = sorted(known)
    near = get_close_matches(word, names, n=1, cutoff=0.6)
    return f" Did you mean '{near[0]}'?" if near else f" Known: {', '.join(names)}."


def shortened(items: Iterable[str], most: int = 5) -> str:
    """A list for an error message: at most `most` items and how many more there are."""
    names = list(items)
    more = f" and {len(names) - most} more" if len(names) > most else ""
    return ", ".join(names[:most]) + more


def problems_of(error: ValidationError, prefix: str, known: Mapping[str, Iterable[str]]) -> tuple[Problem, ...]:
    """What pydantic complains of: each with its path, what was found and, for an unknown field, the nearest known.

    Args:
        error: what pydantic raised.
        prefix: what the texts start with, for example "recipe.yaml: " or "method.".
        known: the fields of each section by its path, for did-you-mean; "" is the outermost section.
    """
    found: dict[str, list[Any]] = {}
    for item in error.errors(include_url=False):
        found.setdefault(".".join(_path(item)), []).append(item)
    return tuple(problem for items in found.values() for problem in _problems_of_items(items, prefix, known))


def shown(value: object) -> str:
    """What a user wrote, for a message: at most a line of it."""
    try:
        text = repr(value)
    except ValueError:  # Python's own words are about a setting of the interpreter
        return f"a number of more than {sys.get_int_max_str_digits():,} digits"
    return text if len(text) <= LINE else f"{text[: LINE - 3]}..."


def _path(item: Any) -> list[str]:
    parts = [str(part) for part in item["loc"]]
    if parts[-1:] == ["[key]"]:
        parts[-2:] = [shown(item["input"]).strip("'")]
    return [part for part in parts if not _UNION_TAG.fullmatch(part)]


def _problems_of_items(items: list[Any], prefix: str, known: Mapping[str, Iterable[str]]) -> tuple[Problem, ...]:
    """What is wrong at one place; where it may hold one of several kinds of values, pydantic complains for each."""
    words = [item for item in items if item["type"] == "literal_error"]
    first, *others = [item for item in items if item not in words] or items
    problems = _problems_of_item(first, prefix, known)
    if not others and words and first not in words:
        allowed = " or ".join(item["ctx"]["expected"] for item in words)
        todo = " ".join(filter(None, (problems[0].todo, f"It may also be {allowed}.")))
        return (replace(problems[0], todo=todo), *problems[1:])
    return (*problems, *(problem for item in others for problem in _problems_of_item(item, prefix, known)))


def _problems_of_item(item: Any, prefix: str, known: Mapping[str, Iterable[str]]) -> tuple[Problem, ...]:
    inner = item.get("ctx", {}).get("error")
    if isinstance(inner, MergeError):
        return tuple(replace(problem, found=f"{prefix}{problem.found}") for problem in inner.problems)
    parts = _path(item)
    path = ".".join(parts)
    where = Where(path=path)
    if item["type"] == "extra_forbidden":
        hint = did_you_mean(parts[-1], known.get(".".join(parts[:-1]), ()))
        return (Problem(f"{prefix}{path}: unknown field", todo=hint.strip(), where=where),)
    if item["type"] == "missing":
        return (Problem(f"{prefix}{path}: missing.", where=where),)
    text = f"{item['msg'].removeprefix('Value error, ')}, found {shown(item['input'])}."
    quotes = item["type"] == "string_type" and isinstance(item["input"], int | float)
    todo = "Put quotes around it where text is meant." if quotes else ""
    return (Problem(f"{prefix}{path}: {text}", todo=todo, where=where),)
