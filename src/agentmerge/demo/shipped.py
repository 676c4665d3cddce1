"""Where the shipped agents are, and the recipe that merges them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from agentmerge.recipe import Recipe

AGENTS = Path(__file__).parent / "agents"
NAMES = ("code", "math", "memory", "tool")
TRIO = ("code", "memory", "tool")
"""The three that the paper merges too; math is the fourth of its study of more agents."""


def folder(name: str) -> Path:
    """The checkpoint of `base` or of an agent."""
    return AGENTS / name


def recipe(method: dict[str, Any], names: tuple[str, ...] = TRIO, *, rounding: str = "nearest") -> Recipe:
    """Merge shipped agents by a method."""
    return Recipe.parse(
        {
            "base": str(folder("base")),
            "agents": {name: str(folder(name)) for name in names},
            "method": method,
            "output": {"rounding": rounding},
        },
        "demo",
    )
