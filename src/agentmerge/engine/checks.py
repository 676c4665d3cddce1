"""What only the data can show: NaN, inf, overflow, unchanged agents, the wrong base. Knows no threads."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from agentmerge.errors import DataError
from agentmerge.survey.integrity import Integrity, IntegrityCounts
from agentmerge.survey.rounding import RoundingCounts
from agentmerge.tensors import LEAF, Block, as_float32

if TYPE_CHECKING:
    from collections.abc import Mapping

    from agentmerge.engine.ledger import Answers
    from agentmerge.engine.plan import Plan, Task
    from agentmerge.sources.source import Source
    from agentmerge.survey.overlap import OverlapCounts

DENSE = 0.95
"""When every agent changed at least this fraction, the base is probably another one."""


def check_block(plan: Plan, task: Task, answers: Answers) -> None:
    """Raise DataError as soon as one block shows numbers that can't be merged or stored."""
    found = answers.get(Integrity())
    if isinstance(found, IntegrityCounts) and (found.nan.any() or found.inf.any()):
        raise DataError(_non_finite_input(plan, task, found))
    for answer in answers.values():
        if not isinstance(answer, RoundingCounts):
            continue
        if answer.non_finite and task.method is None:
            source = plan.base if task.taken_from == "base" else plan.agents[task.taken_from]
            raise DataError(_non_finite(task, {task.taken_from: source}))
        if answer.overflow or answer.non_finite:
            raise DataError(_overflow(task, answer))


def check_agents(plan: Plan, counts: OverlapCounts) -> list[str]:
    """Judge the whole overlap: warnings, or a DataError for an agent that changed nothing.

    Args:
        plan: names and what is allowed.
        counts: over all merged elements.
    """
    warnings = []
    for name, changed, different in zip(plan.names, counts.changed, counts.different, strict=True):
        if changed == 0 and counts.elements:
            found = "is identical to the base" if different == 0 else "changed no element beyond the threshold"
            text = f"agent '{name}' ({plan.agents[name].text}) {found}"
            if plan.recipe.inputs.unchanged == "error":
                raise DataError(
                    f"{text}, expected changes. Check that it is the trained checkpoint, or set "
                    "inputs.unchanged: allow (--unchanged allow) to go on; it then takes no part."
                )
            warnings.append(f"{text}; it takes no part")
    if counts.elements and min(counts.density) >= DENSE:
        densities = ", ".join(f"{n} {d:.1%}" for n, d in zip(plan.names, counts.density, strict=True))
        warnings.append(f"every agent changed nearly every element ({densities}): is this the right base?")
    return warnings


def _non_finite_input(plan: Plan, task: Task, found: IntegrityCounts) -> str:
    sources: dict[str, Source] = {"base": plan.base, **plan.agents}
    bad = (found.nan + found.inf).nonzero()[0]
    names = [name for i in bad if (name := list(sources)[i]) not in task.absent]
    return _non_finite(task, {name: sources[name] for name in names})


def _non_finite(task: Task, sources: Mapping[str, Source]) -> str:
    lines = [_non_finite_source(name, source, task) for name, source in sources.items()]
    return "\n".join(lines) + "\nExpected finite numbers. Use an earlier checkpoint of that training run."


def _non_finite_source(name: str, source: Source, task: Task) -> str:
    """Count the whole tensor, so that the message does not depend on where the first block ended."""
    nan = inf = 0
    spec = source.specs[task.tensor.name]
    for start in range(0, spec.elements, 512 * LEAF):
        values = as_float32(source.weights.read(Block(spec, start, min(start + 512 * LEAF, spec.elements))))
        nan += int(np.isnan(values).sum())
        inf += int(np.isinf(values).sum())
    who = "base" if name == "base" else f"agent '{name}'"
    return f"{task.tensor.name}: {who} ({source.text}) has {nan} NaN and {inf} inf of {spec.elements} elements."


def _overflow(task: Task, counts: RoundingCounts) -> str:
    if counts.overflow:
        return (
            f"{task.tensor.name}: at least {counts.overflow} merged elements are too large for {task.cast.dtype} and "
            "would become inf. Choose a wider output: output.dtype bfloat16 or float32 (--dtype)."
        )
    return (
        f"{task.tensor.name}: at least {counts.non_finite} merged elements are not finite in float32 although every "
        "input is. Lower the method's rescale or the agents' weights."
    )
