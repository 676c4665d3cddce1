"""Numbers in sentences."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from agentmerge.eval.compare.scene import Tested


def points(share: float) -> str:
    """A share of 1 as points: "52.1 points"."""
    return f"{100 * share:.1f} points"


def difference(one: Tested, *, sign: bool = True) -> str:
    """A difference with its 95 % interval and its p among all that were asked with it; without signs, how far below."""
    d = one.difference
    p = "p < 0.001" if one.p < 0.001 else f"p = {one.p:.3f}"
    if sign:
        return f"{100 * d.value:+.1f} points ({100 * d.low:+.1f} to {100 * d.high:+.1f}, {p})"
    return f"{-100 * d.value:.1f} points ({-100 * d.high:.1f} to {-100 * d.low:.1f}, {p})"


def listed(names: Iterable[str]) -> str:
    """For example "code, memory and tool"."""
    every = list(names)
    return " and ".join([", ".join(every[:-1]), every[-1]] if len(every) > 1 else every)


def are(names: Sequence[object]) -> str:
    """Is or are."""
    return "is" if len(names) == 1 else "are"
