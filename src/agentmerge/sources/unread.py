"""Weights of which only the headers are here: everything is known of them but their numbers."""

from __future__ import annotations

from typing import TYPE_CHECKING, NoReturn

from agentmerge.errors import SourceError
from agentmerge.sources.source import NOWHERE, Extents, Stored

if TYPE_CHECKING:
    from collections.abc import Mapping

    from agentmerge.sources.source import Weights
    from agentmerge.tensors import Array, Block, TensorSpec


class Unread:
    """Weights that can be planned with, and not read."""

    def __init__(self, weights: Weights, text: str) -> None:
        """See the class.

        Args:
            weights: made of headers whose data are not here.
            text: what the user wrote, for messages.
        """
        self._weights, self._text = weights, text

    @property
    def specs(self) -> Mapping[str, TensorSpec]:
        """See Weights.specs."""
        return self._weights.specs

    def read(self, block: Block, out: Array | None = None) -> NoReturn:
        """Raise SourceError: there are no numbers."""
        raise SourceError(f"{self._text}: {block.tensor.name} is not downloaded", todo="A merge downloads it.")

    def extents(self, block: Block) -> Extents:
        """Nowhere."""
        return NOWHERE

    def stored(self, name: str) -> tuple[Stored, ...]:
        """See Weights.stored."""
        return self._weights.stored(name)
