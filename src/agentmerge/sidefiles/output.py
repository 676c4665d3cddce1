"""Everything of the output but its numbers and its record: config, tokenizer, card, index."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from agentmerge.files.layout import INDEX, index_json
from agentmerge.record import OutputFacts
from agentmerge.sidefiles.card import card_metadata, model_card
from agentmerge.sidefiles.config import output_config, true_dtype
from agentmerge.sidefiles.copied import side_files

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from agentmerge.files.layout import Layout
    from agentmerge.recipe import Recipe
    from agentmerge.sources.source import Folder


def output_files(
    recipe: Recipe,
    layout: Layout,
    base: Folder,
    tokenizer: Path | None = None,
    config_changes: Mapping[str, Any] | None = None,
) -> dict[str, bytes]:
    """Every file beside the shards and the record, by its relative path.

    Args:
        recipe: for the model card.
        layout: of the shards.
        base: whose side files are copied: the base's folder, or that of what the merge is put onto.
        tokenizer: the folder whose tokenizer is taken; None takes the base's.
        config_changes: what the output's config says otherwise than the base's; None takes a key out.

    Raises:
        SourceError: a side file can't be read.
    """
    files = side_files(base.path, tokenizer, known_only=not base.whole)
    dtype = true_dtype(_elements(layout))
    if "config.json" in files and dtype is not None:
        files["config.json"] = output_config(files["config.json"], dtype, config_changes or {})
    files["README.md"] = model_card(
        "Merged agents: " + ", ".join(recipe.agent_names),
        recipe.base,
        {name: recipe.agents[name].source for name in recipe.agent_names},
        recipe.method.name,
        {section: content for section, content in recipe.dump().items() if section != "run"},
        card_metadata(base.path),
        recipe.onto,
    )
    if (index := index_json(layout)) is not None:
        files[INDEX] = index
    return files


def output_facts(layout: Layout, rounding: str) -> OutputFacts:
    """What is written, for the record.

    Args:
        layout: of the shards.
        rounding: "nearest" or "stochastic".
    """
    return OutputFacts(
        dtype=true_dtype(_elements(layout)) or "none",
        rounding=rounding,
        shards=len(layout.shards),
        bytes=layout.file_bytes,
    )


def _elements(layout: Layout) -> dict[str, int]:
    """Elements by dtype."""
    counts: dict[str, int] = {}
    for place in layout.places.values():
        counts[place.spec.dtype] = counts.get(place.spec.dtype, 0) + place.spec.elements
    return counts
