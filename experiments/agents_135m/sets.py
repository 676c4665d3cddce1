"""Which agents are merged together, and on which domains each set is scored."""

from __future__ import annotations

from agents import AGENTS
from tasks import DOMAINS

SETS: dict[str, tuple[str, ...]] = {
    "E5": ("tool", "memory", "math", "code", "sort"),
    "E3": ("tool", "memory", "math"),
    "H3": ("damaged", "tool", "memory"),
    "D2": ("math", "code"),
    "U3": ("tool-50", "memory", "math"),
    "S3": ("sparse-tool", "sparse-memory", "sparse-math"),
    "E7": ("tool", "memory", "math", "code", "sort", "search", "format"),
    "F3": ("search", "format", "tool"),
    "H7": ("damaged", "tool", "memory", "code", "sort", "search", "format"),
    "W3": ("tool", "memory-50", "math-100"),
    "E4": ("memory", "math", "code", "sort"),
    "X3": ("sparse-tool", "memory", "code"),
    "H4": ("damaged", "code", "search", "format"),
    "E2": ("tool", "memory"),
    "F2": ("search", "format"),
}
"""By name, those first that must not be lacking. E: even; U, W: some stopped early; S, X: sparse; F: long prompts and
formats; H: with an agent that has lost a skill of the base."""

DAMAGED = "damaged"
HARM = tuple(name for name, agents in SETS.items() if DAMAGED in agents)
HEALTHY = tuple(name for name in SETS if name not in HARM)
ABOUT = {
    "E5": "five",
    "E3": "three",
    "H3": "damaged + two",
    "D2": "math, code",
    "U3": "uneven",
    "S3": "sparse",
    "E7": "seven",
    "F3": "search, format, tool",
    "H7": "damaged + six",
    "W3": "uneven 2",
    "E4": "four",
    "X3": "sparse + two",
    "H4": "damaged + three",
    "E2": "tool, memory",
    "F2": "search, format",
}
"""What the tables call them."""


def domain_of(agent: str) -> str:
    """What it was trained on: early ones are called NAME-STEP."""
    name = agent if agent in AGENTS else agent.rpartition("-")[0]
    return AGENTS[name].domain


def domains_of(name: str) -> list[str]:
    """Those of a set's agents; all of them where an agent may have broken something."""
    if name in HARM:
        return list(DOMAINS)
    own = {domain_of(agent) for agent in SETS[name]}
    return [domain for domain in DOMAINS if domain in own]


def domains_scored(name: str, *, wide: bool) -> list[str]:
    """Those of a set, or all of them: on what no agent was trained on a merge may lose, too."""
    return list(DOMAINS) if wide else domains_of(name)


def untrained(name: str) -> list[str]:
    """Domains that no agent of a set was trained on."""
    own = {domain_of(agent) for agent in SETS[name]}
    return [domain for domain in DOMAINS if domain not in own]


def domains_of_model(agent: str, *, all_of_them: bool) -> list[str]:
    """What base or an agent is scored on.

    Base and damaged on everything, others on their own domain; on the seed that selects, the seven on everything, too.
    """
    wide = {"base", DAMAGED, *(DOMAINS if all_of_them else ())}
    return list(DOMAINS) if agent in wide else [domain_of(agent)]


MEASURED = tuple(name for name, agents in SETS.items() if set(agents) <= set(DOMAINS))
"""Sets whose agents were all measured on their own answers (grams.py)."""
HEALTHY_MEASURED = tuple(name for name in HEALTHY if name in MEASURED)
HAVE_UNOWNED = ("H3", "H4", "E3", "D2")
"""Sets for which the base was measured on what no agent was trained on, every token counting the same."""
KEEPING = ("H3", "H4", "E3", "D2", "X3", "F3", "E5", "E2")
"""The same, every prompt counting the same."""
MODELS = ("base", *dict.fromkeys(agent for agents in SETS.values() for agent in agents))
"""What is scored beside the merges."""
