"""Everything of the output but its numbers: config, tokenizer, card, index, record. Knows no method."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from agentmerge.engine.estimate import output_bytes
from agentmerge.files.layout import index_json
from agentmerge.record import RECORD, MergeRecord, OutputFacts
from agentmerge.sidefiles.card import card_metadata, model_card
from agentmerge.sidefiles.copied import output_config, side_files, true_dtype
from agentmerge.sources.folder import INDEX

if TYPE_CHECKING:
    from collections.abc import Callable

    from agentmerge.engine.plan import Plan


def output_files(plan: Plan) -> Callable[[MergeRecord], dict[str, bytes]]:
    """Read the side files now, so that a missing one is told first; they are complete once the record is known."""
    recipe = plan.recipe
    donor = plan.family.tokenizer_from
    files = side_files(
        plan.family.base.folder,
        None if donor == "base" else plan.family.agents[donor].folder,
        known_only=Path(plan.family.base.source).is_file(),
    )
    dtype = true_dtype(_elements(plan))
    if "config.json" in files and dtype is not None:
        files["config.json"] = output_config(files["config.json"], dtype, plan.family.config_changes)
    files["README.md"] = model_card(
        "Merged agents: " + ", ".join(plan.names),
        recipe.base,
        {name: recipe.agents[name].source for name in plan.names},
        recipe.method.name,
        {section: content for section, content in recipe.dump().items() if section != "run"},
        card_metadata(plan.family.base.folder),
    )
    if (index := index_json(plan.layout)) is not None:
        files[INDEX] = index
    return lambda record: {**files, RECORD: record.dump()}


def output_facts(plan: Plan) -> OutputFacts:
    """What is written, for the record."""
    return OutputFacts(
        dtype=true_dtype(_elements(plan)) or "none",
        rounding=plan.recipe.output.rounding,
        shards=len(plan.layout.shards),
        bytes=output_bytes(plan),
    )


def _elements(plan: Plan) -> dict[str, int]:
    counts: dict[str, int] = {}
    for place in plan.layout.places.values():
        counts[place.spec.dtype] = counts.get(place.spec.dtype, 0) + place.spec.elements
    return counts
