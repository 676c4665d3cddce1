"""Untidy checkpoints made alike, step by step: number formats, names, heads, vocabularies, tokenizers, tensors."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from agentmerge.alike.alignment import aligned
from agentmerge.alike.complete import complete
from agentmerge.alike.configs import compare_configs, compare_side_files
from agentmerge.alike.family import Family
from agentmerge.alike.grams import grams_alike
from agentmerge.alike.ground import like_the_base, set_apart
from agentmerge.alike.heads import base_heads, with_head
from agentmerge.alike.names import base_names, renamed_like
from agentmerge.alike.numbers import plain_numbers
from agentmerge.alike.rows import laid_like
from agentmerge.alike.tokenizer import one_tokenizer
from agentmerge.alike.vocabulary import base_rows
from agentmerge.errors import MergeError

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from agentmerge.alike.family import Reads
    from agentmerge.methods.base import Beside
    from agentmerge.recipe import Inputs
    from agentmerge.sources.source import Source

STEPS: tuple[Callable[[Family], Family], ...] = (
    compare_configs,
    complete,
    plain_numbers,
    base_names,
    like_the_base,
    base_heads,
    base_rows,
    set_apart,
    one_tokenizer,
    compare_side_files,
    aligned,
)
"""An agent that fails a step is left out of those that follow, and its error kept."""


def make_alike(
    base: Source,
    agents: Mapping[str, Source],
    inputs: Inputs,
    reads: Reads = lambda tensor, agent: True,
    onto: Source | None = None,
) -> Family:
    """Bring every source into the base's form, or say why that can't be done.

    Args:
        base: as opened.
        agents: by name, as opened.
        inputs: what is allowed.
        reads: whether the recipe has a tensor of an agent read.
        onto: what the merge is put onto, which takes the same way as an agent until the end.

    Returns:
        The sources alike, where `errors` is empty. An agent with an error is left out; an error of the base ends the
        chain and leaves none.
    """
    agents = dict(agents) if onto is None else {**agents, "onto": onto}
    folders = {"base": base.folder.path} | {name: agent.folder.path for name, agent in agents.items()}
    donor = "onto" if onto is not None and inputs.tokenizer_from == "base" else inputs.tokenizer_from
    family = Family(
        base, agents, inputs, lambda t, name: name == "onto" or reads(t, name), folders, tokenizer_from=donor
    )
    for step in STEPS:
        try:
            family = step(family)
        except MergeError as error:
            return replace(family.failed(error), agents={})
    return replace(family, notes=tuple(dict.fromkeys(family.notes)))


def importance_alike(family: Family, importance: Source) -> Source:
    """An agent's importance seen as the agent itself is: names, experts, head and rows.

    Raises:
        AlignmentError: it has another form.
    """
    source, _ = renamed_like(family.base, importance)
    pair = family.pair
    if pair is not None and pair.head in family.base.specs and pair.embedding in source.specs:
        source = with_head(source, pair)
    return laid_like(source, family.base, zero=True)


BESIDE_ALIKE: Mapping[Beside, Callable[[Family, Source], Source]] = {
    "importance": importance_alike,
    "grams": grams_alike,
    "keep": grams_alike,
}
"""How what lies beside the weights is seen as they are."""
