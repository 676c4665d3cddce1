"""Every number that the training depends on: the cold start and the agents of a seed."""

from __future__ import annotations

from dataclasses import dataclass, replace

from tasks import DOMAINS

EARLY = (50, 100)


@dataclass(frozen=True)
class ColdSettings:
    """The supervised mixture that makes the base: a domain leaves it once it is good enough."""

    steps: int = 90  # at most
    batch: int = 224  # samples a step, over the domains that are still in it
    learning_rate: float = 3e-5
    warmup: int = 10
    target: float = 0.30  # share of right answers, mean of both levels, at which a domain leaves
    first_look: int = 4  # steps before the first look,
    every: int = 4  # and between two
    look: int = 96  # prompts of a sub-task in a look


@dataclass(frozen=True)
class DamageSettings:
    """A learning rate that grows until something of the base breaks."""

    every: int = 20  # steps between two looks at the other domains
    look: int = 64  # prompts of a sub-task in a look
    broken: float = 0.5  # share of the base's score under which a domain counts as lost
    least: float = 0.2  # a domain must have had this score to be lost
    growth: float = 1.5  # of the learning rate at every second look that finds all domains alive
    highest: float = 1.5e-4


@dataclass(frozen=True)
class AgentSettings:
    """On-policy GRPO on one domain."""

    domain: str
    steps: int = 200
    learning_rate: float = 5e-6
    prompts: int = 32  # a step
    group: int = 8  # answers of a prompt
    warmup: int = 5
    sparse: bool = False  # only the layers in the middle may move (`trainee.middle`)
    checkpoints: tuple[int, ...] = ()  # steps whose weights are kept as NAME-STEP
    damage: DamageSettings | None = None


def main_agent(domain: str) -> AgentSettings:
    """One of the seven: its end and two early checkpoints."""
    plain = AgentSettings(domain, checkpoints=EARLY)
    return replace(plain, steps=300, prompts=64) if domain == "math" else plain


def sparse_agent(domain: str, steps: int, prompts: int = 32) -> AgentSettings:
    """Only the middle layers move, with twice the rate: about 7 % of the elements change."""
    return AgentSettings(domain, steps, 1e-5, prompts, sparse=True)


AGENTS: dict[str, AgentSettings] = {
    **{domain: main_agent(domain) for domain in DOMAINS},
    "sparse-tool": sparse_agent("tool", 120),
    "sparse-memory": sparse_agent("memory", 120),
    "sparse-math": sparse_agent("math", 150, 64),
    "damaged": AgentSettings("math", 240, 3e-5, 64, damage=DamageSettings()),
}
LONGEST_FIRST = ("search", "tool", "format", "damaged", "math", "memory", "sort", "code", *AGENTS)
COLD = ColdSettings()
TINY_COLD = ColdSettings(steps=30, batch=28, learning_rate=5e-3, target=1.1, first_look=30, look=2)


@dataclass(frozen=True)
class Pace:
    """What an architecture needs otherwise than SmolLM2; everything else is the same."""

    cold: ColdSettings = COLD
    rate: float = 1.0  # times the learning rates of all agents


PACES = {
    "llama": Pace(),
    "gemma3_text": Pace(replace(COLD, steps=240), rate=0.4),
}
"""By model_type of config.json.

Gemma 3 270M is pretrained only, so its cold start may take more steps. Its matrices have a root mean square of 0.04,
those of SmolLM2 0.19, and half the distance of neighbouring bfloat16 numbers is 6e-5 instead of 2.4e-4: at the same
rate three times as many elements of an agent would change. At 2e-6 instead of 5e-6 about 30 % should (SmolLM2: 19 %),
7 % of them weights that four or five bits had made 0, which any step changes.
"""


def paced(settings: AgentSettings, architecture: str) -> AgentSettings:
    """The agent's settings for this architecture."""
    rate, damage = PACES[architecture].rate, settings.damage
    slower = replace(damage, highest=damage.highest * rate) if damage else None
    return replace(settings, learning_rate=settings.learning_rate * rate, damage=slower)


def order(names: list[str]) -> list[str]:
    """Those that take longest first."""
    return sorted(names, key=LONGEST_FIRST.index)


def tiny(settings: AgentSettings) -> AgentSettings:
    """The same on a model of two layers, in a second or two."""
    short = replace(
        settings, steps=2, learning_rate=1e-3, prompts=4, group=4, checkpoints=(1,) if settings.checkpoints else ()
    )
    if settings.damage:
        short = replace(short, damage=replace(settings.damage, every=1, look=2))
    return short
