"""The kept fraction of a task vector: one number for all agents, or one for each by its name."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Annotated, Any

from pydantic import AfterValidator, BeforeValidator, Discriminator, Field, Tag

from agentmerge.errors import Problem, RecipeError, Where, did_you_mean

if TYPE_CHECKING:
    from agentmerge.methods.base import Context


class ByAgent(dict[str, float]):
    """A number of each agent by its name, sorted; a value, which nobody changes."""

    def __init__(self, numbers: Mapping[str, float]) -> None:
        super().__init__(sorted(numbers.items()))

    def __hash__(self) -> int:  # type: ignore[override]
        return hash(tuple(self.items()))


def _number(value: Any) -> Any:
    if isinstance(value, bool):  # pydantic would count it as 1 or 0
        raise ValueError("expected a number, not true or false")
    return value


Kept = Annotated[float, BeforeValidator(_number), Field(gt=0, le=1)]
"""A kept fraction, (0, 1]."""
Share = Annotated[float, BeforeValidator(_number), Field(ge=0, lt=1)]
"""What is left out or varied, [0, 1)."""
_BY_KIND = Discriminator(lambda value: "[agents]" if isinstance(value, Mapping) else "[number]")
Density = Annotated[
    Annotated[Kept, Tag("[number]")] | Annotated[dict[str, Kept], AfterValidator(ByAgent), Tag("[agents]")], _BY_KIND
]
"""The field of a method. The tags stay out of complaints, as they are no part of a recipe's path."""
Shares = Annotated[
    Annotated[Share, Tag("[number]")] | Annotated[dict[str, Share], AfterValidator(ByAgent), Tag("[agents]")], _BY_KIND
]
"""The same of a share."""


def densities_of(density: float | Mapping[str, float], agents: int) -> tuple[float, ...]:
    """The kept fraction of every agent, in sorted-name order; a mapping that was checked names them all."""
    if not isinstance(density, Mapping):
        return (density,) * agents
    return tuple(density[name] for name in sorted(density))


def keeps_all(density: float | Mapping[str, float]) -> bool:
    """Whether nothing of any agent is left out."""
    return all(kept == 1 for kept in (density.values() if isinstance(density, Mapping) else (density,)))


def check_density(
    density: float | Mapping[str, float], context: Context, field: str = "density", what: str = "the kept fraction"
) -> None:
    """A mapping names every agent and nobody else.

    Args:
        density: of a method.
        context: the method's.
        field: the setting's name.
        what: the setting is of every agent.

    Raises:
        RecipeError: each agent that is unknown or lacking.
    """
    if not isinstance(density, Mapping):
        return
    path, agents, problems = f"{context.where}.{field}", context.weights.keys(), []
    for name in sorted(density.keys() - agents):
        hint = did_you_mean(name, agents).strip()
        problems.append(Problem(f"{path}: no agent '{name}'", todo=hint, where=Where(path=path)))
    for name in sorted(agents - density.keys()):
        found, expected = f"{path}: nothing for agent '{name}'", f"{what} of every agent"
        todo = "1 keeps all of it." if field == "density" else ""
        problems.append(Problem(found, expected, todo, Where(path=path)))
    if problems:
        raise RecipeError(*problems)
