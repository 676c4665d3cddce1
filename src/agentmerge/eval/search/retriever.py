"""Whatever finds passages for a query."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from collections.abc import Sequence

NOTHING = "No information available"
"""ZeroSearch's words for it."""


class Retriever(Protocol):
    """Finds passages; the same ones for the same query, or a resumed run asks again what follows."""

    def search(self, query: str, count: int) -> list[str]:
        """At most `count` passages, the best first.

        Raises:
            EvalError: it does not work, now or at all. A run then ends: an empty result would count against the model.
        """
        ...


def as_text(passages: Sequence[str]) -> str:
    """Passages as the model reads them, a line each."""
    lines = (f"Doc {number}: {' '.join(passage.split())}" for number, passage in enumerate(passages, 1))
    return "\n".join(lines) or NOTHING
