"""What mergekit calls otherwise, or has where we have it elsewhere: methods and settings; see docs/mergekit.md."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from agentmerge.errors import Problem

_DARE = "dare, density: 0.5, then: {{name: {}}}"
_ADDED = "task_arithmetic, scale: 1.0"
_TIES = "ties, density: 1.0, normalize: false"

OTHERS = {
    "dare_ties": f"{{name: {_DARE.format(_TIES)}}}; on a command line --method dare --set density=0.5 --set then=ties "
    "--set then.density=1 --set then.normalize=false",
    "dare_linear": f"{{name: {_DARE.format(_ADDED)}}}; on a command line --method dare --set density=0.5 "
    "--set then.scale=1",
    "della_ties": "della, which is around TIES unless `then` says otherwise",
    "nuslerp": "slerp, for models with a base",
    "ramplus_tl": "{name: ram_plus, scope: tensor}",
    "karcher": "no method of its own; next to it, for models of one base, is linear",
    "arcee_fusion": "no method of its own; next to it is ties with a small density, or ram",
    "passthrough": "no method of its own; a rule with `take` copies tensors from the base or from one agent",
}
"""By mergekit's name, or one of its kind, what it is here."""
WEIGHT = (
    "An agent's weight stands at the agent: agents: {NAME: {source: SOURCE, weight: 0.5}} in a recipe, "
    "--weight NAME=0.5 on a command line."
)


def elsewhere(name: str) -> str:
    """What a method of mergekit's name is here; "" where mergekit has none, or one of the same name."""
    found = OTHERS.get(name.lower().replace("-", "_"), "")
    return f"Here it is {found}. docs/mergekit.md has all of mergekit's names." if found else ""


def hinted(problem: Problem) -> Problem:
    """A problem with a field that no method has; with where that stands, if it stands elsewhere."""
    unknown = problem.found.endswith(": unknown field")
    known = unknown and problem.where.path.rpartition(".")[2] in ("weight", "weights")
    return replace(problem, todo=WEIGHT) if known else problem
