"""Which suites can run here: what of data and harnesses is there, in which version, and how to get the rest."""

from __future__ import annotations

from typing import TYPE_CHECKING

from agentmerge.eval.suites import SUITES, suite_of
from agentmerge.eval.versions import version_of
from agentmerge.frozen import Record
from agentmerge.machine import how_to_install

if TYPE_CHECKING:
    from agentmerge.eval.suite import Given

ENGINES = {
    "transformers": f"--generator hf: {how_to_install('eval')}.",
    "torch": f"--generator hf: {how_to_install('eval')}.",
    "vllm": "--generator vllm: pip install vllm, in an environment of its own: it pins torch and transformers.",
    "sglang": "--generator sglang: pip install sglang, in an environment of its own: it pins torch and transformers.",
}
"""What answers in this process; a server needs none of them."""


class SuiteState(Record):
    """One suite."""

    domain: str
    presets: tuple[str, ...]
    versions: dict[str, str]
    """Of its harnesses, where they are installed."""
    problems: tuple[str, ...]
    """What is missing; () where it can run."""


class Diagnosis(Record):
    """What is here."""

    suites: dict[str, SuiteState]
    engines: dict[str, str | None]
    """Versions; null where one is not installed."""


def diagnose(given: Given) -> Diagnosis:
    """Look at every suite with the settings that it has by itself."""
    return Diagnosis(
        suites={name: _state(name, given) for name in SUITES},
        engines={name: version_of(name) for name in ENGINES},
    )


def _state(name: str, given: Given) -> SuiteState:
    suite = suite_of(name).make("paper", given)
    return SuiteState(
        domain=suite.domain,
        presets=tuple(suite.presets),
        versions=suite.versions(),
        problems=tuple(map(str, suite.requires())),
    )
