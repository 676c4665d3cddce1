"""What can go wrong, each with the place, what was found, what was expected and what to do. Knows no work."""

from __future__ import annotations

import re
from contextlib import contextmanager
from dataclasses import dataclass, replace
from difflib import get_close_matches
from typing import TYPE_CHECKING, Any, Literal, Self

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping

    from pydantic import ValidationError


@dataclass(frozen=True, slots=True)
class Role:
    """Who a source is in a merge: the base, or the agent of a name."""

    agent: str = ""
    """The agent's name; "" is the base."""
    beside: str = ""
    """What of the agent it is beside its weights, for example "importance"."""

    def __str__(self) -> str:
        if self.beside:
            return f"agents.{self.agent}.{self.beside}"
        return f"agent '{self.agent}'" if self.agent else "base"

    @property
    def name(self) -> str:
        """What stands for it in a record: "base", the agent's name, or that and what lies beside its weights."""
        return f"{self.agent}.{self.beside}" if self.beside else self.agent or "base"


BASE = Role()


def role_of(name: str) -> Role:
    """The role that a recipe and a record call `name`: "base" or an agent's name."""
    return BASE if name == "base" else Role(name)


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


def complaints(error: ValidationError, prefix: str, known: Mapping[str, Iterable[str]]) -> str:
    """The text of `problems_of`."""
    return "\n".join(map(str, problems_of(error, prefix, known)))


def problems_of(error: ValidationError, prefix: str, known: Mapping[str, Iterable[str]]) -> tuple[Problem, ...]:
    """What pydantic complains of: each with its path, what was found and, for an unknown field, the nearest known.

    Args:
        error: what pydantic raised.
        prefix: what the texts start with, for example "recipe.yaml: " or "method.".
        known: the fields of each section by its path, for did-you-mean; "" is the outermost section.
    """
    items = error.errors(include_url=False)
    return tuple(problem for item in items for problem in _problems_of_item(item, prefix, known))


def _problems_of_item(item: Any, prefix: str, known: Mapping[str, Iterable[str]]) -> tuple[Problem, ...]:
    inner = item.get("ctx", {}).get("error")
    if isinstance(inner, MergeError):
        first, *more = inner.problems
        return (replace(first, found=f"{prefix}{first.found}"), *more)
    parts = [str(part) for part in item["loc"] if not _UNION_TAG.fullmatch(str(part))]
    path = ".".join(parts)
    where = Where(path=path)
    if item["type"] == "extra_forbidden":
        hint = did_you_mean(parts[-1], known.get(".".join(parts[:-1]), ()))
        return (Problem(f"{prefix}{path}: unknown field", todo=hint.strip(), where=where),)
    if item["type"] == "missing":
        return (Problem(f"{prefix}{path}: missing.", where=where),)
    text = f"{item['msg'].removeprefix('Value error, ')}, found {item['input']!r:.80}."
    return (Problem(f"{prefix}{path}: {text}", where=where),)
