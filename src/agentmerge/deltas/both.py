"""A base and an agent, or its delta, opened together: paths, or models on the hub, which are fetched first."""

from __future__ import annotations

from contextlib import ExitStack, contextmanager
from typing import TYPE_CHECKING

from agentmerge.errors import BASE, calling
from agentmerge.hub.fetch import fetched
from agentmerge.sources.opening import opened

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from agentmerge.progress import Watch
    from agentmerge.sources.adapter import Materialize
    from agentmerge.sources.source import Source


@contextmanager
def both(
    base: str | Path, agent: str | Path, watch: Watch, materialize: Materialize = "base_dtype"
) -> Iterator[tuple[Source, Source]]:
    """The two, open for as long as the `with` lasts.

    Args:
        base: whatever a recipe takes as base.
        agent: whatever it takes as agent.
        watch: is told how far fetching is.
        materialize: how the agent is read, as a recipe has it.

    Raises:
        SourceError: one of them can't be fetched or opened.
    """
    with ExitStack() as stack:
        below = stack.enter_context(opened(BASE, str(base), snapshot=fetched(str(base), watch, {})))
        snapshot = fetched(str(agent), watch, {})
        above = stack.enter_context(opened(None, str(agent), below, materialize, snapshot))
        with calling(above.calls):
            yield below, above
