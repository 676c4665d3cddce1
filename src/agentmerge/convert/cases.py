"""Tensors that are merged alike: those of one layer whose names the same filters fit. Knows names, and no methods."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from agentmerge.convert.names import is_embedding, layer_of, sample_tensors
from agentmerge.convert.settings import filters_of

if TYPE_CHECKING:
    from agentmerge.convert.config import MergekitConfig


@dataclass
class Case:
    """Tensors that are merged alike."""

    parts: tuple[str, ...]
    """What their names have in common, in this order; none for the settings of the recipe."""
    words: int = 0
    """How many filters and layers that stands for: a case within another one has more."""
    tensors: list[str] = field(default_factory=list)

    @property
    def glob(self) -> str:
        """A glob that fits them."""
        return "*" + "*".join(re.sub(r"([*?[])", r"[\1]", part) for part in self.parts) + "*" * bool(self.parts)

    @property
    def described(self) -> str:
        """They in words."""
        return f"tensors whose name holds {' and '.join(map(repr, self.parts))}" if self.parts else "most tensors"


def cases_of(config: MergekitConfig) -> list[Case]:
    """The cases of a configuration, broad ones first; the first one is of the tensors that nothing singles out."""
    filters = list(dict.fromkeys(word for _, setting in config.settings() for word in filters_of(setting)))
    found: dict[tuple[Any, ...], Case] = {(None, frozenset(), ()): Case(())}
    for tensor in sample_tensors(filters, config.layers):
        place = _place_part(tensor) if config.graded else None
        fitting = frozenset(word for word in filters if word in tensor)
        words = [*fitting, *([place] if place else [])]
        parts = _parts(tensor, words)
        found.setdefault((place, fitting, parts), Case(parts, len(words))).tensors.append(tensor)
    return sorted(found.values(), key=lambda case: case.words)


def _place_part(tensor: str) -> str | None:
    layer = layer_of(tensor)
    if layer is not None:
        return f"layers.{layer}."
    return "embed" if is_embedding(tensor) else None


def _parts(tensor: str, words: list[str]) -> tuple[str, ...]:
    """What a name holds of the words, in the name's order; words that overlap in it become one."""
    spans: list[list[int]] = []
    for start, stop in sorted((tensor.index(word), tensor.index(word) + len(word)) for word in words):
        if spans and start < spans[-1][1]:
            spans[-1][1] = max(spans[-1][1], stop)
        else:
            spans.append([start, stop])
    return tuple(tensor[start:stop] for start, stop in spans)
