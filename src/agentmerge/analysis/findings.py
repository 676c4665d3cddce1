"""Put a full probe's answers together: rows, headline and advice."""

from __future__ import annotations

from typing import TYPE_CHECKING

from agentmerge.analysis import places, updates
from agentmerge.analysis.advice import advise
from agentmerge.analysis.dilution import dilution_rows, rescale_rows
from agentmerge.analysis.measured import Measured
from agentmerge.analysis.rows import Findings
from agentmerge.methods.ram import CLIP
from agentmerge.survey.modules import ORDER, in_order

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from agentmerge.methods.base import MergeMethod
    from agentmerge.survey.full.question import Profile
    from agentmerge.survey.statistic import Survey
    from agentmerge.tensors import TensorSpec


def findings_of(
    names: Sequence[str], tensors: Mapping[str, TensorSpec], survey: Survey, profile: Profile, method: MergeMethod
) -> Findings:
    """Everything that a full probe found.

    Args:
        names: of the agents, in the order of the answers.
        tensors: of the base, by name.
        survey: holds the answers to the method's overlap and to `profile`.
        profile: the question that was asked.
        method: whose scales are shown.
    """
    counts = survey.total(method.overlap)
    groups = survey.total(profile)
    ordered = {module: groups[module] for module in in_order(list(groups))}  # not as they arrived: floats are summed
    m = Measured(names, survey.every(method.overlap), ordered)
    survival = updates.survival_rows(m)
    clip = getattr(method, "clip", CLIP)  # RAM+'s rescale is shown at the clip that was chosen, where one was
    found = Findings(
        agents=list(names),
        threshold=profile.threshold,
        dtype=_main_dtype(m, tensors),
        elements=m.elements,
        sampled_elements=m.sampled,
        headline=headline(names, counts.density, counts.unique, counts.changed),
        kinds=[kind for kind in ORDER if any(module.kind == kind for module in m.overlap)],
        modules=places.module_rows(m),
        pairs=places.pair_rows(m),
        bins=places.bin_rows(m),
        bin_pairs=places.bin_pair_rows(m),
        steps=updates.step_rows(m),
        totals=updates.agent_rows(m),
        lost=updates.lost_rows(m),
        survival=survival,
        rescale=rescale_rows(survival, m, counts, clip),
        dilution=dilution_rows(m, counts),
        advice=[],
    )
    return found.model_copy(update={"advice": advise(found)})


def headline(names: Sequence[str], density: Sequence[float], unique: Sequence[int], changed: Sequence[int]) -> str:
    """One sentence that says what was found."""
    low, high = min(density), max(density)
    spread = f"{low:.1%}" if len(names) == 1 else f"{low:.1%} to {high:.1%}"
    shares = [u / c for u, c in zip(unique, changed, strict=True) if c]
    if len(names) == 1:
        return f"{names[0]} changed {spread} of the elements."
    if not shares:
        return f"None of {len(names)} agents changed anything."
    alone = f"{min(shares):.0%} to {max(shares):.0%}"
    return f"{len(names)} agents changed {spread} of the elements; {alone} of each agent's changes are its alone."


def _main_dtype(m: Measured, tensors: Mapping[str, TensorSpec]) -> str:
    counted: dict[str, int] = {}
    for name, counts in m.tensors.items():
        dtype = tensors[name].dtype
        counted[dtype] = counted.get(dtype, 0) + counts.elements
    return max(counted, key=lambda dtype: (counted[dtype], dtype))
