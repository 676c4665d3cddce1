"""What a merge is put onto in the base's place: it must have the base's tensors as it stores them, and gives the rest.

    merged = onto + (method(base, agents) - base)

It is seen as an agent is (number formats, prefixes, heads), but nothing of it may be missing, left out or filled up
from the base, as there is nothing else that the output could have there.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from agentmerge.alike.alignment import align
from agentmerge.alike.heads import is_tied, pair_of, tie_flag
from agentmerge.alike.packed import SECTIONS, quantisation
from agentmerge.errors import AlignmentError, MergeError

if TYPE_CHECKING:
    from agentmerge.alike.family import Family
    from agentmerge.sources.source import Source


def like_the_base(family: Family) -> Family:
    """The family where what the merge is put onto has the base's rows and ties its head as the base does.

    This comes before heads and rows are made alike, which would fill up from the base what is missing.
    """
    onto = family.agents.get("onto")
    if onto is None:
        return family
    try:
        _check_shapes(family.base, onto)
        _check_ties(family, onto)
    except MergeError as error:
        return family.without("onto", error)
    return family.changed(**dict.fromkeys(SECTIONS)) if quantisation(family.configs["onto"]) else family


def set_apart(family: Family) -> Family:
    """The family whose agents are agents alone; the other checkpoint has the base's tensors and no more."""
    onto = family.agents.get("onto")
    if onto is None:
        return family
    try:
        align(family.base, {"onto": onto}, missing_allowed=False, extra_allowed=False)
    except AlignmentError as error:
        return family.without("onto", error)
    return replace(family, onto=onto, agents={name: a for name, a in family.agents.items() if name != "onto"})


def _check_shapes(base: Source, onto: Source) -> None:
    for name, spec in onto.specs.items():
        if name in base.specs and base.specs[name].shape != spec.shape:
            raise AlignmentError(
                f"{name}: onto has shape {list(spec.shape)}, base has {list(base.specs[name].shape)}",
                expected="the same shapes",
                todo="What the agents changed fits models of the base's own size and vocabulary alone.",
                where=replace(onto.where, tensor=name),
            )


def _check_ties(family: Family, onto: Source) -> None:
    """The head's config is that of `onto`, and its tensors are the base's: both must tell the same."""
    config, pair = family.configs["base"], pair_of(family.base, untied=tie_flag(family.configs["base"]) is False)
    if pair is None or family.inputs.untie:
        return
    theirs = family.configs["onto"]
    own = pair_of(onto, untied=tie_flag(theirs) is False) or pair
    ties = is_tied(family.base, config, pair), is_tied(onto, theirs, own)
    if ties[0] != ties[1]:
        said = [
            f"{who} {'ties' if tied else 'does not tie'}"
            for who, tied in zip(("onto", "base"), ties[::-1], strict=True)
        ]
        raise AlignmentError(
            f"{pair.head}: {said[0]} it to {pair.embedding}, {said[1]} it",
            expected="the same of both",
            todo="Set inputs.untie: true (--untie) to give the output a head of its own.",
            where=replace(onto.where, tensor=pair.head),
        )
