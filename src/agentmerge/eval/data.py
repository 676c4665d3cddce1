"""Data files that a user gives: found by name in --data-dir, never downloaded unasked, told by their hash."""

from __future__ import annotations

import hashlib
import json
from dataclasses import dataclass
from typing import TYPE_CHECKING

from agentmerge.errors import EvalError, Problem, Where
from agentmerge.eval.lines import read_lines
from agentmerge.eval.suite import DataFile

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from agentmerge.eval.request import JSON
    from agentmerge.eval.suite import Given


@dataclass(frozen=True)
class Hub:
    """Where a data set lies on the hub."""

    repository: str
    configuration: str = ""
    split: str = "test"
    file: str = ""
    """Its path in the repository, where it is JSON lines there; else the split is read by the library datasets."""


@dataclass(frozen=True)
class Need:
    """A data file of a suite: JSON lines, or a JSON list, of objects with these fields."""

    suite: str
    name: str
    """Of the file in --data-dir."""
    origin: str
    """Where it comes from, in words: a data set of the hub with its configuration and split."""
    fields: tuple[str, ...]
    hub: Hub | None = None
    """Where `agentmerge eval fetch` finds it."""

    def path(self, given: Given) -> Path | None:
        """Where it is; None where it is not."""
        path = None if given.data_dir is None else given.data_dir / self.name
        return path if path is not None and path.is_file() else None

    def missing(self, given: Given) -> list[Problem]:
        """What to say where it is not there; [] where it is."""
        if self.path(given) is not None:
            return []
        folder = given.data_dir
        at = f"{folder} holds no {self.name}" if folder else f"needs {self.name}, and no --data-dir is given"
        return [
            Problem(
                f"{self.suite}: {at}",
                expected=f"JSON lines with {', '.join(self.fields)}, from {self.origin}",
                todo=f"Put it there, or run `agentmerge eval fetch {self.suite} --data-dir DIR` where the hub can be "
                "reached."
                if self.hub
                else "Put it there.",
                where=Where(path=str(folder / self.name) if folder else self.name),
            )
        ]

    def rows(self, given: Given) -> list[dict[str, JSON]]:
        """Its objects.

        Raises:
            EvalError: it is not there, or not as it should be.
        """
        path = self.path(given)
        if path is None:
            raise EvalError(*self.missing(given))
        return read_rows(path, self.fields)

    def file(self, given: Given) -> DataFile:
        """What the record says of it."""
        path = self.path(given)
        if path is None:
            raise EvalError(*self.missing(given))
        return DataFile(self.name, self.origin, sha256_of(path), len(read_rows(path, ())))


def read_rows(path: Path, fields: Sequence[str]) -> list[dict[str, JSON]]:
    """The objects of a file of JSON lines, or of a JSON list.

    Raises:
        EvalError: it can't be read, is empty, or an object lacks a field.
    """
    where = Where(path=str(path))
    rows = _list(path) if path.suffix == ".json" else read_lines(path)
    if not rows:
        raise EvalError(f"{path}: is empty", expected="a JSON object on every line", where=where)
    for number, row in enumerate(rows, 1):
        lacking = [name for name in fields if name not in row]
        if lacking:
            found = f"{path}: object {number} has no {', '.join(lacking)}; it has {', '.join(row)}"
            raise EvalError(found, expected=f"objects with {', '.join(fields)}", where=where)
    return rows


def sha256_of(path: Path) -> str:
    """Of a file's content."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _list(path: Path) -> list[dict[str, JSON]]:
    """A JSON list of objects; JSON lines too, which go by this ending as well."""
    try:
        content = path.read_bytes()
        if content.lstrip()[:1] == b"{":
            return read_lines(path)
        found = json.loads(content)
    except (OSError, ValueError, RecursionError) as error:
        raise EvalError(f"{path}: can't be read as JSON: {error}", where=Where(path=str(path))) from None
    if not isinstance(found, list) or not all(isinstance(row, dict) for row in found):
        return read_lines(path)
    return found
