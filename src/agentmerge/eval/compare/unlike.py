"""What was not the same when rows were evaluated, though their items were: scores may differ by that."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from agentmerge.eval.compare.roles import Entry


WHERE = ("server", "version", "model")
"""Parts of a generator's identity that say where a row was asked, and by what name a server knows it."""


def unlike(entries: Sequence[Entry], suites: Sequence[str]) -> Iterator[str]:
    """A sentence for each suite of different settings, for different generators and for different harnesses."""
    for suite in suites:
        asked = [one.results.record.suites[suite].settings for one in entries if suite in one.results.record.suites]
        if names := differing(asked):
            yield f"{suite} was asked with different settings ({', '.join(names)}): scores may differ by that."
    generators = [one.results.record.model.generator for one in entries]
    if names := [name for name in differing(generators) if name not in WHERE]:
        values = ", ".join(f"{name} {_values(generators, name)}" for name in names)
        yield f"Answers were generated in different ways ({values}): scores may differ by that."
    versions = [{k: v for k, v in one.results.record.versions.items() if k != "agentmerge"} for one in entries]
    common = set.intersection(*(set(one) for one in versions))
    if names := [name for name in differing(versions) if name in common]:
        values = ", ".join(f"{name} {_values(versions, name)}" for name in names)
        yield f"Answers were scored by different versions ({values}): scores may differ by that."


def differing(every: Sequence[Mapping[str, object]]) -> list[str]:
    """Keys that do not have the same value everywhere."""
    return sorted({key for one in every for key in one if any(other.get(key) != one[key] for other in every)})


def _values(every: Sequence[Mapping[str, object]], name: str) -> str:
    return " and ".join(dict.fromkeys(str(one.get(name)) for one in every))
