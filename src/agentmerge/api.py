"""What a program calls: merge and probe, from a recipe in any form. Speaks to nobody."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from agentmerge.engine import pipeline
from agentmerge.recipe import Recipe

if TYPE_CHECKING:
    from agentmerge.engine.runner import Runner, Watch
    from agentmerge.record import MergeRecord, ProbeRecord


def merge(
    recipe: Recipe | Mapping[str, Any] | str | Path,
    out: str | Path,
    *,
    overwrite: bool = False,
    runner: Runner | None = None,
    watch: Watch | None = None,
) -> MergeRecord:
    """Merge the agents of a recipe into one checkpoint at `out`; a killed call resumes when it is made again.

    Args:
        recipe: a Recipe, the same as plain data, or the path of a YAML file.
        out: a new or empty folder; it appears when everything is written.
        overwrite: replace a folder that is there, once the new one is whole.
        runner: who does the work; threads of this process by default.
        watch: is told of the progress.

    Returns:
        The record, which also lies in `out` as merge_record.json.

    Raises:
        MergeError: whatever the user can mend; `out` is as it was.
    """
    return pipeline.merge(as_recipe(recipe), Path(out), overwrite=overwrite, runner=runner, watch=watch)


def probe(
    recipe: Recipe | Mapping[str, Any] | str | Path,
    *,
    runner: Runner | None = None,
    watch: Watch | None = None,
) -> ProbeRecord:
    """See what the agents changed, without writing a model: the first half of `merge`.

    Args:
        recipe: as for `merge`; its method decides which scales are shown.
        runner: who does the work; threads of this process by default.
        watch: is told of the progress.

    Returns:
        Counts per agent in `.survey`, all answers in `.answers`; `.save(path)` writes what `run.survey` reads back.

    Raises:
        MergeError: whatever the user can mend.
    """
    return pipeline.probe(as_recipe(recipe), runner=runner, watch=watch)


def as_recipe(recipe: Recipe | Mapping[str, Any] | str | Path) -> Recipe:
    """A Recipe from any of its forms."""
    if isinstance(recipe, Recipe):
        return recipe
    return Recipe.parse(dict(recipe)) if isinstance(recipe, Mapping) else Recipe.load(recipe)
