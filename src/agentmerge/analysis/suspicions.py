"""Rules that ask whether the inputs are what they are taken for. Each takes the findings alone."""

from __future__ import annotations

from typing import TYPE_CHECKING

from agentmerge.analysis.facts import advice, changed_by_kind, densities, listed, model_pairs

if TYPE_CHECKING:
    from collections.abc import Iterator

    from agentmerge.analysis.models import Advice, Findings, PairRow

WRONG_BASE = 0.95
"""Density of every agent from which on the base is doubted."""
ANCESTRY = 0.6
"""Share of the elements changed by both that were changed by the same amount."""
TWINS = 0.9
"""Share of either agent's changes that the other has, too."""
FEW_TENSORS = 0.1
"""Share of the tensors."""
ADAPTER = 0.9
"""Density of the matrices that were changed at all."""
HIDDEN = 0.05
"""Share of the differing elements that stay below the threshold."""
UNEVEN = 4.0
"""Ratio of the lengths of two task vectors."""


def right_base(found: Findings) -> Iterator[Advice]:
    """Every agent changed nearly everything, or agents share their changes: is there a closer ancestor?"""
    density = densities(found)
    if min(density.values()) >= WRONG_BASE:
        yield advice(
            "right_base",
            [],
            f"Every agent changed nearly every element ({listed(density)}):",
            "this is probably not the checkpoint that they were trained from.",
        )
    for pair in model_pairs(found):
        if (pair.equal or 0) >= ANCESTRY and not _are_twins(found, pair):
            yield advice(
                "right_base",
                [pair.left, pair.right],
                f"{pair.equal:.0%} of the elements that both changed were changed by the same amount: they seem to",
                "descend from a common checkpoint closer than this base, for example after a supervised cold start.",
                "Use that one as the base.",
            )


def twins(found: Findings) -> Iterator[Advice]:
    """Two agents that are nearly the same."""
    for pair in model_pairs(found):
        if _are_twins(found, pair):
            yield advice(
                "twins",
                [pair.left, pair.right],
                f"They changed the same elements, {pair.equal:.0%} of them by the same amount: nearly one agent.",
                "Leave one out, or both count twice and all that they changed counts as shared.",
            )


def narrow(found: Findings) -> Iterator[Advice]:
    """An agent that changed few tensors, or only norms, or only the vocabulary."""
    for row in found.totals:
        kinds = changed_by_kind(found, row.agent)
        changed = sum(kinds.values())
        if not changed:
            continue
        if kinds.keys() <= {"norm"}:
            text = f"All of its {changed:,} changed elements are in norms. Check that this is the trained checkpoint."
        elif kinds.keys() <= {"embeddings", "head"}:
            text = (
                f"All of its {changed:,} changed elements are in the vocabulary ({', '.join(kinds)}): perhaps new "
                "tokens only. Check whose tokenizer is copied (`--tokenizer-from`)."
            )
        elif row.tensors >= 10 and row.tensors_changed <= FEW_TENSORS * row.tensors:
            text = f"It changed {row.tensors_changed} of {row.tensors} tensors, in {', '.join(kinds)}. Was this meant?"
        else:
            continue
        yield advice("narrow", [row.agent], text)


def adapter(found: Findings) -> Iterator[Advice]:
    """Changes that look like a merged LoRA adapter; the rank is not judged, which would take whole matrices."""
    for name in found.agents:
        rows = [row for row in found.modules if row.agent == name]
        changed = [row for row in rows if row.changed]
        kinds = list(dict.fromkeys(row.kind for row in changed))
        untouched = {row.kind for row in rows} - set(kinds)
        if not changed or not {"norm", "embeddings"} <= untouched or {"head", "other"} & set(kinds):
            continue
        density = sum(row.changed for row in changed) / sum(row.elements for row in changed)
        if density >= ADAPTER:
            yield advice(
                "adapter",
                [name],
                f"It changed {density:.0%} of {', '.join(kinds)}, and nothing of norms and embeddings: like a merged",
                "LoRA adapter (its rank is not judged here). Such task vectors are dense and of low rank; compare with",
                "`ties` and `wudi`.",
            )


def hidden(found: Findings) -> Iterator[Advice]:
    """Changes below the threshold, which RAM leaves out."""
    shares = {}
    for name in found.agents:
        rows = [row for row in found.modules if row.agent == name]
        below, changed = sum(row.below_threshold for row in rows), sum(row.changed for row in rows)
        if below > HIDDEN * (below + changed):
            shares[name] = below / (below + changed)
    if shares:
        yield advice(
            "hidden",
            list(shares),
            f"Of the elements that differ from the base, some stay below the threshold {found.threshold:g}, so RAM",
            f"does not merge them: {listed(shares)}. Lower it (`--set threshold=0`) to keep them.",
        )


def uneven(found: Findings) -> Iterator[Advice]:
    """One agent's task vector is much longer than another's."""
    norms = {row.agent: row.norm for row in found.totals if row.norm > 0}
    if len(norms) > 1 and max(norms.values()) > UNEVEN * min(norms.values()):
        small, large = min(norms, key=norms.__getitem__), max(norms, key=norms.__getitem__)
        yield advice(
            "uneven",
            [small, large],
            f"The task vector of {large} is {norms[large] / norms[small]:.1f} times as long as that of {small}:",
            f"weak agents suffer under every method. Give {small} a larger weight, and score it alone after the merge.",
        )


def _are_twins(found: Findings, pair: PairRow) -> bool:
    changed = {name: sum(row.elements for row in found.steps if row.agent == name) for name in (pair.left, pair.right)}
    return pair.overlap * (pair.equal or 0) >= TWINS * max(*changed.values(), 1)
