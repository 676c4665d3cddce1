"""The agents of a synthetic set: their names and how much each changes. Knows no numbers and no files."""

from __future__ import annotations

from typing import TYPE_CHECKING

from agentmerge.errors import RecipeError

if TYPE_CHECKING:
    from collections.abc import Sequence

NAMES = ("code", "tool", "memory")
"""The first agents; the next are agent4, agent5 ..."""

DENSITIES = (0.032, 0.462, 0.543)
"""Default densities, those of the paper's agents; from the fourth agent on they begin again."""


def densities_by_name(agents: int, densities: Sequence[float] | None = None) -> dict[str, float]:
    """The agents' names and what each shall change, in their order.

    Raises:
        RecipeError: no agent, not one density for each, or a density out of [0, 1].
    """
    check_at_least_one("agents", agents)
    names = [*NAMES, *(f"agent{i + 1}" for i in range(len(NAMES), agents))][:agents]
    values = [DENSITIES[i % len(DENSITIES)] for i in range(agents)] if densities is None else list(densities)
    if len(values) != agents:
        raise RecipeError(f"densities: {len(values)} given for {agents} agents. Give one for each agent.")
    for name, value in zip(names, values, strict=True):
        if not 0 <= value <= 1:
            raise RecipeError(f"densities: {value} for agent '{name}', expected a share from 0 to 1.")
    return dict(zip(names, values, strict=True))


def check_at_least_one(name: str, value: int) -> None:
    """Complain of a setting that counts something and is less than 1.

    Raises:
        RecipeError: it is.
    """
    if value < 1:
        raise RecipeError(f"{name}: {value}, expected at least 1.")
