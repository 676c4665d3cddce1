"""Whether an agent is of the base's family of models, by the model_type of their configs."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from agentmerge.alike.heads import HEAD
from agentmerge.errors import AlignmentError
from agentmerge.sources.language import language_model, language_path
from agentmerge.sources.prefixes import common_name

if TYPE_CHECKING:
    from collections.abc import Mapping

    from agentmerge.sources.source import Source


def refuse_family(base: Mapping[str, Any], ours: Source, agent: Mapping[str, Any], theirs: Source) -> None:
    """Stop an agent of another family of models, whose tensors are others, before anything less is said of it.

    Some models go by two names: where both have the same tensors, another `model_type` is a warning. So it is where one
    is a text model and the other has that in a section: the tensors decide, with leave.
    """
    kinds = families(base, agent)
    nested_alike = bool(language_path(base)) == bool(language_path(agent))
    if not all(kinds) or kinds[0] == kinds[1] or not nested_alike or _names(ours) == _names(theirs):
        return
    raise AlignmentError(
        f"{theirs.role} is another model: model_type {kinds[1]} in its config.json, the base has {kinds[0]}, and its "
        "tensors are others, too;",
        expected="an agent that was trained from this base",
        todo="Use an agent of this base, or the base of this agent. No setting merges the two; if it is the base's "
        "model under another name, correct model_type in its config.json.",
        where=theirs.where,
    )


def _names(source: Source) -> set[str]:
    """What tells the tensors of one family from another's; heads may be stored or not."""
    return {common_name(name) for name in source.specs if not HEAD.search(name)}


def families(base: Mapping[str, Any], agent: Mapping[str, Any]) -> list[str]:
    """The model_type of both language models; "" where a config says none."""
    sections = language_model(base), language_model(agent)
    return [str(section.get("model_type") or "").removesuffix("_text") for section in sections]
