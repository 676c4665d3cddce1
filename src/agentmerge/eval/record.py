"""eval_record.json: which model was evaluated how, on what, and what came out."""

from __future__ import annotations

import json
import os
import time
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, Self

from pydantic import Field, ValidationError

from agentmerge.errors import EvalError, Where
from agentmerge.eval.empty import Empty
from agentmerge.eval.statistics import Summary
from agentmerge.files.journal import busy
from agentmerge.files.os_errors import output_errors
from agentmerge.files.positional import lock_folder
from agentmerge.files.staging import replace_file
from agentmerge.frozen import Frozen, Record

if TYPE_CHECKING:
    from collections.abc import Iterator

RECORD = "eval_record.json"
PATIENCE = 30.0
"""Seconds that a process waits for another one to write its suite into the record."""


class DataFacts(Frozen):
    """A data file that was read."""

    name: str
    origin: str
    sha256: str
    items: int


class ColumnFacts(Summary):
    """A column, and how it comes about from the scores of items."""

    label: str
    metric: str
    groups: tuple[str, ...] = ()
    combine: Literal["items", "groups"] = "items"
    counts: bool = True


class Tokens(Frozen):
    """Counted by the generator; null where it does not tell."""

    prompt: int | None
    generated: int | None


class SuiteFacts(Record):
    """One suite: its settings, its data and its columns."""

    domain: str
    preset: str
    settings: dict[str, Any]
    limit: int | None = None
    """Most items of a group; null took all."""
    data: list[DataFacts]
    items: int
    columns: dict[str, ColumnFacts]
    scoring: dict[str, Any] = Field(default_factory=dict)
    """What the suite found out while it scored, such as what kept programs in."""
    requests: int
    """Distinct ones."""
    tokens: Tokens
    cut_off: int
    """Answers that ended at max_tokens."""
    empty: Empty = Field(default_factory=Empty)
    """Answers without any text; records of earlier versions count none."""
    seconds: float
    """Of generating, over all sessions."""


class ModelFacts(Frozen):
    """Who answered."""

    name: str
    path: str | None
    """The checkpoint's folder, where one was given."""
    weights: str | None = None
    """Hash of the names, sizes and times of its weight files."""
    generator: dict[str, Any]
    merge: dict[str, Any] | None = None
    """Of a checkpoint that agentmerge merged: method, seconds and agents."""


class EvalRecord(Record):
    """Everything that was done and found."""

    format: int = 1
    versions: dict[str, str]
    model: ModelFacts
    suites: dict[str, SuiteFacts] = Field(default_factory=dict)

    @classmethod
    def load(cls, folder: Path | str) -> Self:
        """Read the record of a folder that `agentmerge eval` wrote.

        Raises:
            EvalError: there is none, or it can't be read.
        """
        path = Path(folder) / RECORD
        where = Where(path=str(path))
        try:
            return cls.model_validate(json.loads(path.read_bytes()))
        except (FileNotFoundError, NotADirectoryError):
            todo = "Run `agentmerge eval MODEL --out` with this folder first."
            raise EvalError(f"{folder}: holds no {RECORD}", todo=todo, where=where) from None
        except ValidationError as error:
            first = error.errors()[0]
            field = ".".join(map(str, first["loc"]))
            raise EvalError(f"{path}: not an EvalRecord: {field}: {first['msg']}.", where=where) from None
        except (OSError, ValueError, RecursionError) as error:
            raise EvalError(f"{path}: can't be read: {error}.", where=where) from None

    def save(self, folder: Path) -> None:
        """Write it into a folder, all at once.

        Raises:
            OutputError: it can't be written there.
        """
        replace_file(folder / RECORD, (self.model_dump_json(indent=2) + "\n").encode())


@contextmanager
def locked(folder: Path) -> Iterator[None]:
    """Keep other evaluations from the record of a folder, to read it and write it with a suite more.

    Where the file system locks no folders there is no lock.

    Raises:
        OutputError: another process keeps it for longer than PATIENCE, or the folder can't be opened.
    """
    deadline = time.monotonic() + PATIENCE
    with output_errors(folder):
        while (lock := lock_folder(folder)) is None:
            if time.monotonic() > deadline:
                raise busy(folder)
            time.sleep(0.01)
    try:
        yield
    finally:
        if lock >= 0:
            os.close(lock)
