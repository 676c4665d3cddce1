"""Where a push must not go: the branches of the models that a merge was made of.

Whoever merges again would otherwise read the merge in the place of its base, or of an agent, and be told nothing.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from agentmerge.errors import RecipeError, Where
from agentmerge.sources.hub import hub_id

if TYPE_CHECKING:
    from collections.abc import Mapping

    from agentmerge.sources.hub import HubId

MAIN = "main"
"""The branch that a push goes to unless another is named."""


def refuse_source(target: HubId, read: Mapping[str, str]) -> None:
    """Raise RecipeError where a push would change what a merge was made of, or will be.

    That is main of a source's repository, whatever of it was read, and the branch that a source names. Any other branch
    of it, and a pull request, may be meant.

    Args:
        target: the repository and branch.
        read: what each source is, by what the user wrote for it.
    """
    branch = target.revision or MAIN
    for text, what in read.items():
        model = _model_of(text)
        if model is None or model[0].lower() != target.name.lower() or branch not in (MAIN, model[1]):
            continue
        raise RecipeError(
            f"{target}: {what} ({text}) is of this repository, and its {branch} would be this merge from then on",
            expected="a repository of the merge's own",
            todo=f"Push to another name, or to a new branch there: {target.name}@BRANCH.",
            where=Where(source=str(target)),
        )


def _model_of(text: str) -> tuple[str, str] | None:
    """The repository and the revision that a source names, be it a folder of that name or of the hub's cache."""
    found = hub_id(text)
    if found is not None:
        return found.name, found.revision
    for part in Path(text).parts:
        if part.startswith("models--"):
            return part.removeprefix("models--").replace("--", "/", 1), ""
    return None
