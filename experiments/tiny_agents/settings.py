"""Every number that the training depends on."""

from __future__ import annotations

from dataclasses import dataclass, field

SEEDS = (1, 2)


@dataclass(frozen=True)
class BaseSettings:
    """The supervised mixture that makes the base."""

    recall_batch: int = 32  # sequences a step, to learn looking things up first,
    recall_loss: float = 0.25  # from 2 keys to 5, one more whenever this loss is reached
    recall_most: int = 1600  # steps of it
    recall_rate: float = 1e-3  # of AdamW
    recall_kept: int = 4  # sequences a step beside the mixture
    steps: int = 1200  # on the mixture
    batch: int = 40  # samples a step, over all sub-tasks
    learning_rate: float = 2.5e-3  # of Muon;
    last_rate: float = 0.35  # in the last third it falls to this share: a base still on its way, that RL can sharpen
    warmup: int = 50
    aim: float = 0.4  # a sub-task's share of the mixture falls as its score nears this
    weights: dict[str, float] = field(default_factory=lambda: {"code": 0.3, "math": 2.0})  # code is soon learned
    every: int = 100  # steps between two looks at the scores
    look: int = 64  # dev samples of a sub-task in a look


@dataclass(frozen=True)
class AgentSettings:
    """On-policy GRPO on one domain."""

    learning_rate: float
    steps: int
    epsilon: float = 1e-2  # of Adam; larger than most gradients, it moves fewer elements for the same gain
    prompts: int = 16  # a step
    group: int = 8  # samples of a prompt
    temperature: float = 1.0
    warmup: int = 5


@dataclass(frozen=True)
class SupervisedSettings:
    """Supervised training on one domain, for contrast."""

    domain: str = "tool"
    learning_rate: float = 1e-4
    steps: int = 150
    batch: int = 128


@dataclass(frozen=True)
class Settings:
    """All of it."""

    base: BaseSettings = BaseSettings()
    agents: dict[str, AgentSettings] = field(
        default_factory=lambda: {
            "code": AgentSettings(1e-4, 150, epsilon=3e-2),
            "math": AgentSettings(5e-4, 200, prompts=32, group=16),
            "memory": AgentSettings(7e-4, 150),
            "tool": AgentSettings(7e-4, 200),
        }
    )
    supervised: SupervisedSettings = SupervisedSettings()
