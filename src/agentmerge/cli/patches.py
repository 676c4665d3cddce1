"""What `agentmerge merge` writes of a merge beside its folder, or in place of it: a patch, and what undoes that."""

from __future__ import annotations

import inspect
import shutil
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, NamedTuple, Self

import typer

import agentmerge
from agentmerge.cli.options import Overwrite, in_place_of_the_first
from agentmerge.cli.pack import summary
from agentmerge.deltas.file import check_free
from agentmerge.deltas.look import is_delta, look
from agentmerge.engine.reads import named_in
from agentmerge.errors import MergeError, OutputError, RecipeError, Where
from agentmerge.files.os_errors import output_errors
from agentmerge.record import RECORD, MergeRecord
from agentmerge.sources.hub import hub_model

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

    from agentmerge.cli.console import Bar
    from agentmerge.deltas.record import PackRecord
    from agentmerge.files.protected import Protected
    from agentmerge.recipe import Recipe


class Goal(NamedTuple):
    """What the command line says of where a merge shall go."""

    out: Path | None
    patch: Path | None
    undo: Path | None
    overwrite: bool


OPTIONS: dict[str, Any] = {
    "out": Annotated[
        Path | None, typer.Option(help="New or empty folder for the merged checkpoint.", show_default=False)
    ],
    "patch": Annotated[
        Path | None,
        typer.Option(
            help="A file for the merge as what it changed of the base, see `agentmerge pack`; without --out no folder "
            "stays.",
            show_default=False,
        ),
    ],
    "undo": Annotated[
        Path | None, typer.Option(help="A file that makes the base of the merge: PATCH's inverse.", show_default=False)
    ],
    "overwrite": Overwrite,
}


def takes_goal(command: Callable[..., None]) -> Callable[..., None]:
    """Options in place of a command's first parameter, a Goal."""
    added = [
        inspect.Parameter(
            name,
            inspect.Parameter.KEYWORD_ONLY,
            default=False if option.__origin__ is bool else None,
            annotation=option,
        )
        for name, option in OPTIONS.items()
    ]
    return in_place_of_the_first(added, lambda given: Goal(**{name: given[name] for name in OPTIONS}))(command)


@dataclass(frozen=True, slots=True)
class Patches:
    """Where a merge goes, and what is made of it."""

    folder: Path
    """Where the merged checkpoint is written."""
    stays: bool
    """False: that folder is one of ours beside the patch, and goes when the patch is whole."""
    patch: Path | None
    undo: Path | None
    overwrite: bool
    left: bool
    """Whether an earlier run of the same recipe packed the patch of the merge in the folder, and was killed before its
    end."""

    @classmethod
    def of(cls, recipe: Recipe, goal: Goal, *, several: bool) -> Self:
        """What the options ask for.

        Args:
            recipe: whose sources are not written over.
            goal: the folder, and the files of the patch and of its inverse.
            several: whether it is a sweep.

        Raises:
            RecipeError: they do not fit together.
            OutputError: a file is there already, or lies in what is read.
        """
        out, patch, undo, overwrite = goal
        files = [path for path in (patch, undo) if path is not None]
        if several and files:
            todo = "Merge one of the values, or pack the merges one by one with `agentmerge pack`."
            raise _impossible("--patch and --undo are of one merge, found --sweep", todo)
        if out is None and patch is None:
            raise _impossible("merge: neither --out nor --patch is given", "Say where the merge shall go: --out DIR.")
        if len({*files}) < len(files):
            raise _impossible(f"--patch and --undo are both {patch}", "Give two files.")
        hidden = None if patch is None else patch.with_name(f".{patch.name}.merged")
        folder = out or hidden
        assert folder is not None
        left = not (out and (undo is None or undo.exists())) and _packed_before(recipe, folder, patch)
        found = cls(folder, out is not None, patch, undo, overwrite, left)
        if files:
            with output_errors(folder):
                _check_folder(folder, hidden)
                found.check(named_in(recipe))
        return found

    def check(self, read: Protected) -> None:
        """Raise OutputError where a file, or the folder, would touch what is anybody's.

        Args:
            read: what the merge reads.
        """
        read.add_folder(self.folder, "the merge")
        for path in (self.patch, self.undo):
            if path is not None:
                check_free(path, overwrite=self.overwrite or (path == self.patch and self.left))
                read.refuse(path, path.parent.resolve() / path.name)

    @property
    def replaces(self) -> bool:
        """Whether what is in the folder may be replaced: a merge in one of ours, which an earlier run did not pack."""
        return self.overwrite if self.stays else self.overwrite or (self.folder / RECORD).is_file()

    @property
    def again(self) -> bool:
        """Whether a merge that is finished is taken as it is: an earlier run of this command was killed after it.

        In a folder that stays, --overwrite asks for a new one.
        """
        return not (self.stays and self.overwrite)

    @property
    def place(self) -> Path:
        """What is told to be the merge."""
        return self.folder if self.stays or self.patch is None else self.patch

    def write(self, merged: MergeRecord, bar: Bar) -> dict[str, PackRecord]:
        """Write the files, from the merged folder; over a base on the hub, as it was merged."""
        below = merged.sources.get("onto", merged.sources["base"])
        model = hub_model(below["source"])
        base = f"{model}@{below['commit']}" if model and "commit" in below else below["source"]
        found: dict[str, PackRecord] = {}
        try:
            if self.patch is not None:
                overwrite = self.overwrite or self.left
                found["patch"] = agentmerge.pack(base, self.folder, self.patch, overwrite=overwrite, watch=bar)
            if self.undo is not None:
                found["undo"] = agentmerge.pack(self.folder, base, self.undo, overwrite=self.overwrite, watch=bar)
        except MergeError as error:
            error.add_note(f"the merge itself is complete in {self.folder}: `agentmerge pack` writes files of it")
            raise
        if not self.stays:
            shutil.rmtree(self.folder)
        return found

    def summary(self, packed: Mapping[str, PackRecord]) -> Iterator[str]:
        """What was written, for people."""
        for path, record in zip((self.patch, self.undo), map(packed.get, ("patch", "undo")), strict=True):
            if path is not None and record is not None:
                yield "\n".join(summary(record, path))


def _packed_before(recipe: Recipe, folder: Path, patch: Path | None) -> bool:
    """Whether the patch is of the merge in the folder, and that one of this recipe; how it is run aside."""
    if patch is None or not (folder / RECORD).is_file() or not is_delta(str(patch)):
        return False
    with suppress(MergeError):  # it is somebody's
        record = MergeRecord.load(folder)
        return look(str(patch)).merge == record and {**record.recipe, "run": None} == {**recipe.dump(), "run": None}
    return False


def _check_folder(folder: Path, hidden: Path | None) -> None:
    """Raise OutputError where something else lies in the folder of ours."""
    if folder == hidden and folder.is_dir() and any(folder.iterdir()) and not (folder / RECORD).is_file():
        found, todo = f"{folder}: what lies there is no merge", "Move it, or give --out DIR."
        raise OutputError(found, expected="room for the merge", todo=todo, where=Where(path=str(folder)))


def _impossible(found: str, todo: str) -> RecipeError:
    return RecipeError(found, todo=todo, where=Where(path="--patch"))
