"""What every method that wraps another shares. Abstract; knows no files."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Literal

from pydantic import SerializeAsAny, field_validator, model_validator

from agentmerge.methods.base import MergeMethod

if TYPE_CHECKING:
    from collections.abc import Mapping

    from agentmerge.survey.overlap import Overlap
    from agentmerge.tensors import TensorSpec


class Wrapper(MergeMethod):
    """A method that changes what another one gets or gives; the other is the field `then`."""

    then: SerializeAsAny[MergeMethod]
    """The inner method: a name, or a mapping with a name and settings."""

    @field_validator("then", mode="before")
    @classmethod
    def _resolved(cls, value: Any) -> Any:
        from agentmerge.methods.registry import resolve_method

        return value if isinstance(value, MergeMethod) else resolve_method(value)

    @model_validator(mode="before")
    @classmethod
    def _default(cls, data: Any) -> Any:
        return {"then": "task_arithmetic", **data} if isinstance(data, dict) else data

    def reach_of(self, tensor: TensorSpec) -> Literal["element", "tensor"]:
        """As far as the inner method's."""
        return self.then.reach_of(tensor)

    def cost(self, tensor: TensorSpec, agents: int) -> float:
        """The inner method's."""
        return self.then.cost(tensor, agents)

    def working_bytes(self, tensor: TensorSpec, agents: int) -> int:
        """The inner method's."""
        return self.then.working_bytes(tensor, agents)

    def accelerated(self) -> bool:
        """As the inner method."""
        return self.then.accelerated()

    @property
    def reads(self) -> tuple[str, ...]:
        """What the inner method reads."""
        return self.then.reads

    @property
    def overlap(self) -> Overlap:
        """At the inner method's threshold: a wrapper has no changes of its own."""
        return self.then.overlap

    def check(self, weights: Mapping[str, float]) -> None:
        """The inner method's check."""
        self.then.check(weights)
