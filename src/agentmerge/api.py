"""What a program calls: merge, sweep, probe and check, from a recipe in any form. Nothing is printed."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import product
from typing import TYPE_CHECKING, Any

from agentmerge.engine import preflight
from agentmerge.engine.merge import merge_all, probe_one
from agentmerge.engine.passes import nothing, of_a_report
from agentmerge.errors import RecipeError
from agentmerge.files.paths import expanded
from agentmerge.hub.push import push as push_folder
from agentmerge.recipe import Recipe

if TYPE_CHECKING:
    from pathlib import Path

    from agentmerge.engine.findings import CheckRecord
    from agentmerge.engine.passes import Questions
    from agentmerge.engine.runner import Runner
    from agentmerge.hub.push import PushRecord
    from agentmerge.progress import Watch
    from agentmerge.record import MergeRecord, ProbeRecord


def merge(
    recipe: Recipe | Mapping[str, Any] | str | Path,
    out: str | Path,
    *,
    overwrite: bool = False,
    again: bool = False,
    full: bool = False,
    runner: Runner | None = None,
    watch: Watch | None = None,
) -> MergeRecord:
    """Merge the agents of a recipe into one checkpoint at `out`; a killed call resumes when it is made again.

    Args:
        recipe: a Recipe, the same as plain data, or the path of a YAML file.
        out: a new or empty folder; it appears when everything is written.
        overwrite: replace a folder that is there, once the new one is whole.
        again: where `out` is what an earlier call with this recipe and these sources finished, give its record.
        full: measure all that a report shows, too: `.findings` and `.retention`.
        runner: who does the work; threads of this process by default.
        watch: is told of the progress.

    Returns:
        The record, which also lies in `out` as merge_record.json.

    Raises:
        MergeError: whatever the user can mend; `out` is as it was.
    """
    recipes = {expanded(out): as_recipe(recipe)}
    beside = _beside(full)
    return merge_all(recipes, overwrite=overwrite, again=again, beside=beside, runner=runner, watch=watch)[0]


def sweep(
    recipe: Recipe | Mapping[str, Any] | str | Path,
    field: str,
    values: Sequence[Any],
    out: str | Path,
    *,
    overwrite: bool = False,
    full: bool = False,
    runner: Runner | None = None,
    watch: Watch | None = None,
) -> dict[str, MergeRecord]:
    """Merge once per value of one of the method's settings, reading the inputs once for all of them.

    `field` is a setting of the method, for example "rescale". The merge with each of its `values` goes into a folder of
    `out` that is named FIELD=VALUE. The other arguments are those of `merge`; `sweep_all` takes several settings.

    Returns:
        The records by folder name.

    Raises:
        MergeError: whatever the user can mend.
    """
    fields = {field: values}
    return sweep_all(recipe, fields, out, overwrite=overwrite, full=full, runner=runner, watch=watch)


def sweep_all(
    recipe: Recipe | Mapping[str, Any] | str | Path,
    fields: Mapping[str, Sequence[Any]],
    out: str | Path,
    *,
    overwrite: bool = False,
    full: bool = False,
    runner: Runner | None = None,
    watch: Watch | None = None,
) -> dict[str, MergeRecord]:
    """Merge once per combination of values of several settings of the method, reading the inputs once for all of them.

    `fields` are the values of each setting, for example `{"rescale": [0.1, 0.5], "clip": [1, 2]}`, which makes four
    merges. Each goes into a folder of `out` that is named FIELD=VALUE,FIELD=VALUE. The other arguments are those of
    `merge`.

    Returns:
        The records by folder name.

    Raises:
        MergeError: whatever the user can mend.
    """
    recipes = swept(recipe, fields)
    folders = {expanded(out) / name: found for name, found in recipes.items()}
    records = merge_all(folders, overwrite=overwrite, beside=_beside(full), runner=runner, watch=watch)
    return dict(zip(recipes, records, strict=True))


def swept(recipe: Recipe | Mapping[str, Any] | str | Path, fields: Mapping[str, Sequence[Any]]) -> dict[str, Recipe]:
    """The recipes of a sweep by the names of their folders; see `sweep_all`.

    Raises:
        RecipeError: a setting has no values, or one twice; a value does not fit the setting, or a folder's name.
    """
    base = as_recipe(recipe)
    for field, values in fields.items():
        if not values:
            raise RecipeError(f"sweep: no values for {field}", expected="at least one")
        twice = next((value for i, value in enumerate(map(str, values)) if value in map(str, values[:i])), None)
        if twice is not None:
            raise RecipeError(f"sweep: {field} has the value {twice} twice", expected="different values")
    combinations = [dict(zip(fields, chosen, strict=True)) for chosen in product(*fields.values())]
    return {_folder_name(chosen): base.with_method(chosen) for chosen in combinations}


def _folder_name(settings: Mapping[str, Any]) -> str:
    name = ",".join(f"{field}={value}" for field, value in settings.items())
    if "/" in name:
        raise RecipeError(f"sweep: {name} can't be the name of a folder", todo="Merge these values one by one.")
    return name


def probe(
    recipe: Recipe | Mapping[str, Any] | str | Path,
    *,
    full: bool = False,
    runner: Runner | None = None,
    watch: Watch | None = None,
) -> ProbeRecord:
    """See what the agents changed, without writing a model: the first half of `merge`.

    The recipe's method decides which scales are shown. The arguments are those of `merge`; `full` gives `.findings` and
    takes about twice the time.

    Returns:
        Counts per agent in `.survey`, all answers in `.answers`; `.save(path)` writes what `run.survey` reads back.

    Raises:
        MergeError: whatever the user can mend.
    """
    return probe_one(as_recipe(recipe), beside=_beside(full), runner=runner, watch=watch)


def check(
    recipe: Recipe | Mapping[str, Any] | str | Path, out: str | Path | None = None, *, overwrite: bool = False
) -> CheckRecord:
    """Say whether the sources of a recipe fit together, from headers, configs and tokenizers alone.

    With `out`, and `overwrite` as for `merge`, also whether a merge may end there.

    Returns:
        Every finding in `.findings`, errors first; `.ok` where none stops a merge.

    Raises:
        RecipeError: the recipe itself is wrong.
    """
    return preflight.check(as_recipe(recipe), None if out is None else expanded(out), overwrite=overwrite)


def push(folder: str | Path, repository: str, *, public: bool = False, bars: bool = False) -> PushRecord:
    """Put a merge on the Hugging Face hub, once its weights, record and model card have been checked.

    Args:
        folder: that `merge` wrote.
        repository: OWNER/NAME on the hub, or OWNER/NAME@BRANCH; made when it is not there, private unless `public`.
        public: everybody sees a repository that is made; one that is there stays as it is.
        bars: huggingface_hub shows its progress on stderr.

    Raises:
        MergeError: whatever the user can mend; a folder that does not pass the check leaves the hub as it is.
    """
    return push_folder(expanded(folder), repository, public=public, bars=bars)


def _beside(full: bool) -> Questions:
    return of_a_report if full else nothing


def as_recipe(recipe: Recipe | Mapping[str, Any] | str | Path) -> Recipe:
    """A Recipe from any of its forms."""
    if isinstance(recipe, Recipe):
        return recipe.bound()
    return Recipe.parse(dict(recipe)) if isinstance(recipe, Mapping) else Recipe.load(recipe)
