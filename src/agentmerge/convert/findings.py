"""What a conversion has to say: refusals, all in one error, and warnings. Knows no recipes."""

from __future__ import annotations

from dataclasses import dataclass, field

from agentmerge.errors import RecipeError

METHODS = ("linear", "task_arithmetic", "ties", "dare_linear", "dare_ties", "ram", "ramplus_tl")
"""mergekit's methods that have an equal here."""

NEAREST_METHOD = {
    "slerp": "`linear` with weights 1 - t and t, which is the same for models that are close",
    "nuslerp": "`linear`, which is the same for models that are close",
    "multislerp": "`linear`, which is the same for models that are close",
    "karcher": "`linear`, which is the same for models that are close",
    "della": "`dare` with then: ties, which keeps each element with one probability instead of one by rank",
    "della_linear": "`dare` with then: task_arithmetic, which keeps each element with one probability",
    "breadcrumbs": "`task_arithmetic`; nothing here removes the largest changes",
    "breadcrumbs_ties": "`ties`; nothing here removes the largest changes",
    "model_stock": "`linear` with a weight of your own for each agent",
    "sce": "`ties`, which elects signs too, with a weight of your own for each agent",
    "nearswap": "`linear`",
    "arcee_fusion": "`ties` with a small density, or `ram`",
    "passthrough": "a rule with `take`, which copies tensors from the base or from one agent",
}
"""mergekit's methods that are not here, and what comes nearest."""

MIXTURE_KEYS = ("experts", "gate_mode", "experts_per_token", "shared_experts", "positive_prompts")
"""Keys of a mergekit-moe configuration."""


@dataclass
class Findings:
    """Refusals and warnings of one file, in the order in which they were found."""

    file: str
    refusals: list[str] = field(default_factory=list)
    warnings: list[str] = field(default_factory=list)

    def refuse(self, key: str, found: object, why: str, nearest: str = "") -> None:
        """Note what has no equal here: the key, what stands there, why, and what comes nearest."""
        shown = found if isinstance(found, str) else repr(found)
        self.refusals.append(
            f"{self.file}: {key}: found {shown:.160}; {why}" + (f" Nearest: {nearest}." * bool(nearest))
        )

    def warn(self, text: str) -> None:
        """Note once what is different here or left out without harm."""
        if text not in self.warnings:
            self.warnings.append(text)

    def stop(self) -> None:
        """Raise RecipeError with every refusal so far on a line of its own; return where there are none."""
        if self.refusals:
            raise RecipeError("\n".join(dict.fromkeys(self.refusals)))
