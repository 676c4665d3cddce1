"""What is asked of every agent, and from when on it counts as damage."""

from __future__ import annotations

from typing import Annotated, ClassVar

from pydantic import BeforeValidator, Field

from agentmerge.importance.prepare import Asked
from agentmerge.tensors import dtype_name


class HarmOptions(Asked):
    """What to measure and how."""

    command: ClassVar[str] = "harm"
    torch: ClassVar[str] = "harm.model"

    examples: int = Field(default=64, ge=2)
    """Prompts of each skill: the first of the file that fit."""
    dtype: Annotated[str, BeforeValidator(dtype_name)] = "float32"
    """That is computed in: float32, float64 or bfloat16, which rounds what lies between base and agent."""
    new_tokens: int = Field(default=64, ge=1)
    """Most tokens of an answer that is made because the file has none."""
    batch_tokens: int = Field(default=8192, ge=1)
    """Most tokens that are read together, padded; one prompt at least."""
    limit: float = Field(default=0.5, ge=0, allow_inf_nan=False)
    """Nats that an answer of the base may lose before an agent counts as harmful: 0.5 leaves it 61 % as likely."""
