"""Plain rules: what the numbers of a full probe suggest, and why. Each takes the findings alone.

First rules about what to do, then those that ask whether the inputs are what they are taken for, then what they look
up. docs/reading-a-report.md lists them. A method is recommended only where it won in docs/evidence.md or
evidence-tiny.md (evidence.py); what a rule says of these agents has seen no score.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from agentmerge.analysis.evidence import AUTO, BASELINE, RULE
from agentmerge.analysis.lengths import foreign, outlier, uneven
from agentmerge.analysis.sentences import advice, listed
from agentmerge.analysis.summaries import changed_by_kind, densities, model_pairs

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from agentmerge.analysis.rows import Advice, Findings, PairRow

SPARSE, DENSE = 0.6, 0.8
"""Densities up to which, and from which on."""
SURVIVES, LOST = 0.5, 0.1
"""Share of unique elements that a rescale should reach, and of changed ones that a mean may lose."""
SHARED, CONFLICT = 0.1, 0.35
"""Share of the changes that are shared, and of those whose signs differ."""
GRID = 0.1
"""Overlap beyond chance that is worth a word."""
KEPT = 0.85
"""Retention under RAM."""
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


def advise(found: Findings) -> list[Advice]:
    """Every rule that applies, in the order of RULES."""
    return [item for rule in RULES for item in rule(found)]


def training(found: Findings) -> Iterator[Advice]:
    """Sparse as after RL, or dense as after supervised training."""
    sparse = {name: density for name, density in densities(found).items() if 0 < density <= SPARSE}
    dense = {name: density for name, density in densities(found).items() if density >= DENSE}
    if sparse:
        yield advice(
            "training",
            list(sparse),
            f"Changed elements: {listed(sparse)}: sparse, as after RL (3.2% to 54.3% in the paper).",
            "Selecting by element, as RAM does, has something to select.",
        )
    if dense:
        yield advice(
            "training",
            list(dense),
            f"Changed elements: {listed(dense)}: dense, as after supervised training or a long run at a high learning",
            f"rate. Little is unique then, and no trial of ours merged such agents: score {RULE.name} and {AUTO.name}",
            f"beside `{BASELINE}` at a tuned scale.",
            methods=(RULE, AUTO),
        )


def method(found: Findings) -> Iterator[Advice]:
    """Which method, by how much of each agent RAM is expected to keep."""
    kept = {row.agent: row.retention for row in found.dilution if row.method == "ram" and row.retention is not None}
    if len(found.agents) < 2 or not kept:
        return
    values = ", ".join(f"{name} {value:.2f}" for name, value in kept.items())
    if min(kept.values()) >= KEPT:
        yield advice(
            "method",
            [],
            f"RAM keeps most of each agent's change ({values}); {AUTO.name} makes up for the rest, which is little.",
            methods=(AUTO,),
        )
        return
    yield advice(
        "method",
        [],
        f"RAM would keep only a part of each agent's change: {values}. Where nothing can be tuned, use {RULE.name},",
        "which did best in our trials (docs/evidence.md), or, where whole matrices are too much arithmetic,",
        f"{AUTO.name}, which keeps it element by element; both with `--rounding stochastic`. `{BASELINE}` at a scale",
        "tuned on scores is the baseline to beat.",
        methods=(RULE, AUTO),
    )


def storage(found: Findings) -> Iterator[Advice]:
    """The rescale of RAM+, or a mean, that rounding to nearest would undo."""
    rows = [row for row in found.rescale if row.dtype == found.dtype and row.rescale == 0.1]
    weak = {row.agent: row.at_most for row in rows if row.at_most is not None and row.at_most < SURVIVES}
    if weak:
        yield advice(
            "storage",
            list(weak),
            f"RAM+ at rescale 0.1, stored as {found.dtype} to nearest, differs from RAM on few of the unique elements",
            f"(at most {listed(weak)}). Use `--rounding stochastic` or `--dtype float32`.",
        )
    means = [row for row in found.lost if row.method == "task_arithmetic" and row.dtype == found.dtype]
    gone = {row.agent: row.changed_lost or 0.0 for row in means}
    if len(gone) > 1 and max(gone.values()) > LOST:
        yield advice(
            "storage",
            [],
            f"The mean of the agents (task arithmetic at 1 / {len(gone)}), stored as {found.dtype} to nearest, rounds",
            f"changes back to the base: {listed(gone, 0)} of the changed elements. The same remedy.",
        )


def conflict(found: Findings) -> Iterator[Advice]:
    """Shared elements that agents pull in opposite directions."""
    worst = {row.agent: row.conflict for row in found.totals if row.conflict is not None and row.conflict >= CONFLICT}
    if worst and sum(row.shared for row in found.modules) >= SHARED * sum(row.changed for row in found.modules):
        yield advice(
            "conflict",
            list(worst),
            f"In many shared elements some agents raise what others lower ({listed(worst, 0)}; independent changes of",
            f"two agents give 50%). The mean cancels there. {AUTO.name} makes up for it where an agent is alone, and",
            f"{RULE.name} looks for what interferes least. Other rules for them gained nothing in our trials.",
            methods=(AUTO, RULE),
        )


def grid(found: Findings) -> Iterator[Advice]:
    """Overlap beyond chance that is gone once the size of the weights is taken into account."""
    for pair in model_pairs(found):
        if pair.ratio is None or pair.ratio_within is None:
            continue
        if pair.ratio > 1 + GRID and pair.ratio_within < 1 + GRID / 2:
            yield advice(
                "grid",
                [pair.left, pair.right],
                f"They share {pair.ratio:.2f} times the elements that chance gives, but {pair.ratio_within:.2f} times",
                "among weights of one size in one module: they meet where the stored grid is fine, which is no sign of",
                "shared knowledge.",
            )


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
                "LoRA adapter (its rank is not judged here). Such task vectors are dense and of low rank: little tells",
                f"their elements apart. {RULE.name} looks at whole matrices.",
                methods=(RULE,),
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
            f"does not merge them: {listed(shares)}. With `--set threshold=0` it does; no trial has scored that.",
        )


def _are_twins(found: Findings, pair: PairRow) -> bool:
    changed = {name: sum(row.elements for row in found.steps if row.agent == name) for name in (pair.left, pair.right)}
    return pair.overlap * (pair.equal or 0) >= TWINS * max(*changed.values(), 1)


RULES: tuple[Callable[[Findings], Iterator[Advice]], ...] = (
    right_base,
    foreign,
    method,
    storage,
    conflict,
    grid,
    twins,
    narrow,
    adapter,
    training,
    hidden,
    uneven,
    outlier,
)
