"""What a merge reads, that it is what it should be, and that its output touches none of it."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from agentmerge.engine.estimate import drafts_of
from agentmerge.errors import RecipeError, SourceNotFoundError, Where
from agentmerge.files.destination import Destination
from agentmerge.files.protected import Protected
from agentmerge.files.torch_header import SUFFIXES
from agentmerge.files.writer import missing_bytes
from agentmerge.sources.beside import is_tokenizer
from agentmerge.sources.hub import local_path

if TYPE_CHECKING:
    from collections.abc import Mapping

    from agentmerge.engine.plan import Plan
    from agentmerge.errors import MergeError, Role
    from agentmerge.methods.base import Beside
    from agentmerge.recipe import Recipe
    from agentmerge.sources.source import Source


def check_output(plan: Plan, out: Path, *, overwrite: bool = False) -> None:
    """Raise OutputError where a merge can't end in `out`: what `merge`, a dry run and `check` say of it.

    Args:
        plan: what is read and how much is written.
        out: the folder to appear.
        overwrite: what is there may be replaced.
    """
    refuse_read(plan, out)
    place = Destination(out).checked(overwrite=overwrite)
    place.check_space(missing_bytes(place.folder, plan.layout, drafts_of([plan])))


def refuse_read(plan: Plan, out: Path) -> None:
    """Raise OutputError where `out`, or a folder that a run has beside it, touches what is read."""
    place = Destination(out)
    reads_of(plan).refuse(out, place.out, place.folder, place.aside.folder)


def reads_of(plan: Plan) -> Protected:
    """Every file that a merge reads."""
    read = named_in(plan.recipe)
    for source in plan.opened:
        what = f"the source of {source.role}"
        for file in source.identity.files:
            read.add_file(source.identity.folder / file.name, what)
        if source.role is not None and not (source.role.agent and source.role.beside):
            read.add_folder(source.folder.path, what, whole=source.folder.whole)
    return read


def named_in(recipe: Recipe) -> Protected:
    """The files and folders that a recipe names, its own file included."""
    read = Protected()
    files = [(recipe.run.survey, "the saved survey"), (recipe.file, "the recipe")]
    named = [(Path(path), what) for path, what in files if path]
    for path, what in (*named, *((local_path(text), what) for text, what in texts_of(recipe).items())):
        with suppress(OSError):  # no path of this system, such as an id
            _protect(read, path, what)
    return read


def texts_of(recipe: Recipe) -> dict[str, str]:
    """What a recipe calls its sources, and what each is."""
    found = {recipe.base: "the source of base", recipe.onto or "": "the source of onto"}
    found |= {recipe.keep or "": "what the base must keep"}
    for name, agent in recipe.agents.items():
        found |= {agent.source: f"the source of agent '{name}'"}
        found |= {agent.importance or "": f"the importance of '{name}'", agent.grams or "": f"the grams of '{name}'"}
    found.pop("", None)
    return found


def beside_recipe(error: MergeError, recipe: Recipe, text: str) -> MergeError:
    """The error of a source; where that is not here, but lies beside the recipe's file, with what to do then."""
    if not isinstance(error, SourceNotFoundError) or recipe.file is None or local_path(text).exists():
        return error
    folder = recipe.file.resolve().parent
    if not (folder / text).exists():
        return error
    todo = (
        f"It lies beside the recipe, as {folder / text}, but the paths in a recipe are relative to the working "
        f"directory: write that, or run the command in {folder}."
    )
    return type(error)(replace(error.problems[0], todo=todo), *error.problems[1:])


def _protect(read: Protected, path: Path, what: str) -> None:
    """A folder; or a file, and with one of weights the config and tokenizer beside it."""
    if path.is_dir():
        read.add_folder(path, what)
    elif path.exists():
        read.add_file(path, what)
        for beside in path.parent.iterdir() if path.suffix in (".safetensors", *SUFFIXES) else ():
            if beside.name == "config.json" or is_tokenizer(beside.name):
                read.add_file(beside, what)


def refuse_data(role: Role, text: str, kind: Beside) -> None:
    """Raise RecipeError where a recipe names prompts, or a record, in the place of what was measured."""
    path, command, model = Path(text), "importance" if kind == "importance" else "grams", role.agent or "BASE"
    if path.name == f"{command}.json":
        found, todo = f"{role}: {text} is the record alone", f"Name its folder: {path.parent}"
    elif path.suffix in (".jsonl", ".json"):
        found = f"{role}: {text} are prompts"
        todo = f"Run `agentmerge {command} {model} --data {text} --out FOLDER`, and name FOLDER."
    else:
        return
    expected = f"the folder that `agentmerge {command}` makes"
    raise RecipeError(found, expected=expected, todo=todo, where=Where(role, text))


def refuse_same_source(sources: Mapping[str, Source]) -> None:
    """Raise RecipeError where two sources are the same files."""
    seen: dict[tuple[Path, ...], str] = {}
    for name, source in sources.items():
        key = source.identity.paths
        if key in seen:
            raise RecipeError(
                f"'{seen[key]}' and '{name}' are the same files ({source.folder.path.resolve()})",
                todo="Every agent must be a checkpoint of its own, and none of them the base"
                f"{' or what the merge is put onto' if 'onto' in sources else ''}.",
            )
        seen[key] = name
