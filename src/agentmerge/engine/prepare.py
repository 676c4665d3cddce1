"""Untidy checkpoints made alike: number formats, names, heads and vocabularies. Knows no methods and no tasks."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from agentmerge.checkpoint.configs import config_differences, template_differences
from agentmerge.checkpoint.heads import Heads, Tie, aligned_heads
from agentmerge.checkpoint.naming import renamed_like
from agentmerge.checkpoint.quantised import dequantised
from agentmerge.checkpoint.sidecars import read_config
from agentmerge.checkpoint.vocab import aligned_vocabulary
from agentmerge.errors import AlignmentError

if TYPE_CHECKING:
    from collections.abc import Mapping

    from agentmerge.checkpoint.reader import Opened
    from agentmerge.recipe import Inputs


@dataclass(frozen=True)
class Prepared:
    """Sources under the base's names and shapes, and what that means for the output."""

    base: Opened
    agents: dict[str, Opened]
    heads: Heads
    ties: tuple[Tie, ...]
    config: Mapping[str, Any]
    """The base's config.json as read."""
    config_changes: dict[str, Any] = field(default_factory=dict)
    """What the output's config says otherwise; None takes a key out."""
    tokenizer_from: str = "base"
    warnings: tuple[str, ...] = ()


def prepare(base: Opened, agents: Mapping[str, Opened], inputs: Inputs) -> Prepared:
    """Bring every source into the base's form, or say why that can't be done.

    Args:
        base: as opened.
        agents: by name, as opened.
        inputs: what is allowed.

    Raises:
        MergeError: the first thing that can't be made alike.
    """
    configs = {"base": read_config(base.folder), **{n: read_config(a.folder) for n, a in agents.items()}}
    warnings = check_configs(base, agents, configs, inputs)
    plain = {n: dequantised(s, configs[n]) for n, s in {"base": base, **agents}.items()}
    changes: dict[str, Any] = {}
    if plain["base"] is not base:
        changes |= {"quantization_config": None, "compression_config": None}
    named = {n: renamed_like(plain["base"], plain[n], f"agent '{n}'") for n in agents}
    heads = aligned_heads(plain["base"], named, configs, untie=inputs.untie)
    if inputs.untie:
        changes["tie_word_embeddings"] = False
    vocabulary = aligned_vocabulary(heads.base, heads.agents, inputs.vocab)
    if vocabulary.rows is not None:
        changes["vocab_size"] = vocabulary.rows
    donor = inputs.tokenizer_from
    if vocabulary.grown_by is not None and donor == "base":
        donor = vocabulary.grown_by
    return Prepared(
        base=vocabulary.base,
        agents=vocabulary.agents,
        heads=heads,
        ties=heads.ties,
        config=configs["base"],
        config_changes=changes,
        tokenizer_from=donor,
        warnings=(*warnings, *heads.warnings, *vocabulary.warnings),
    )


def check_configs(
    base: Opened, agents: Mapping[str, Opened], configs: Mapping[str, Mapping[str, Any]], inputs: Inputs
) -> list[str]:
    """Warn of every difference between the configs; a rope difference is an error unless the recipe allows it."""
    warnings = []
    for name, agent in agents.items():
        differences = config_differences(name, configs["base"], configs[name])
        differences += template_differences(name, base.folder, agent.folder) if inputs.tokenizer_from == "base" else []
        for difference in differences:
            if difference.kind == "rope" and inputs.rope == "error":
                raise AlignmentError(
                    f"{difference.text}. Their weights expect other positions; set inputs.rope: base (--rope base) to "
                    "merge them all the same under the base's."
                )
            warnings.append(difference.text)
    return warnings
