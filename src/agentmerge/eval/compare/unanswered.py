"""Rows whose answers are empty: their scores may say more of how they were served than of what they can do."""

from __future__ import annotations

from typing import TYPE_CHECKING

from agentmerge.eval.compare.rows import Judgement
from agentmerge.eval.empty import said_of

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from agentmerge.eval.compare.roles import Entry


def unanswered(entries: Sequence[Entry], suites: Sequence[str]) -> Iterator[Judgement]:
    """The rule `empty`: a judgement for each row and suite of which it is worth telling."""
    for entry in entries:
        for suite, facts in entry.results.record.suites.items():
            if suite in suites and (said := said_of(facts.empty, facts.requests)):
                yield Judgement(
                    rule="empty",
                    rows=[entry.name],
                    units=[f"{suite}.{column}" for column in facts.columns],
                    text=f"{entry.name} in {suite}: {said} Nothing that is said of it there counts before that is "
                    "looked at.",
                )
