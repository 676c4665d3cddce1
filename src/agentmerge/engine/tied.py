"""An output head that is the embedding under a second name: merged and counted once. Knows no methods."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from agentmerge.errors import DataError
from agentmerge.tensors import LEAF, Block

if TYPE_CHECKING:
    from collections.abc import Mapping

    from agentmerge.checkpoint.reader import Checkpoint

HEADS = ("lm_head.weight", "output.weight", "embed_out.weight")
EMBEDDINGS = (
    "embed_tokens.weight",
    "wte.weight",
    "word_embeddings.weight",
    "tok_embeddings.weight",
    "embed_in.weight",
)
STEP = 512 * LEAF  # elements compared at a time


@dataclass(frozen=True, slots=True)
class TiedPair:
    """Two names of one tensor."""

    embedding: str
    head: str


def tied_pair(base: Checkpoint, config: Mapping[str, Any]) -> TiedPair | None:
    """The base's stored head and embedding where its config ties them; None without a stored head or a tie."""
    text = config.get("text_config")
    tied = config.get("tie_word_embeddings", text.get("tie_word_embeddings") if isinstance(text, dict) else None)
    embeddings = [spec for name, spec in base.specs.items() if name.endswith(EMBEDDINGS)]
    if tied is not True or len(embeddings) != 1:
        return None
    kind = (embeddings[0].shape, embeddings[0].dtype)
    heads = [name for name, spec in base.specs.items() if name.endswith(HEADS) and (spec.shape, spec.dtype) == kind]
    return TiedPair(embeddings[0].name, heads[0]) if len(heads) == 1 else None


def check_tied(pair: TiedPair, sources: Mapping[str, Checkpoint]) -> None:
    """Compare the head with the embedding in every source that stores both.

    Raises:
        DataError: a head that is not the embedding, although the config says so.
    """
    for name, source in sources.items():
        head, embedding = source.specs.get(pair.head), source.specs.get(pair.embedding)
        if head is None or embedding is None:
            continue
        for start in range(0, embedding.elements, STEP):
            stop = min(start + STEP, embedding.elements)
            left, right = (source.read(Block(spec, start, stop)) for spec in (embedding, head))
            if not np.array_equal(left.view(np.uint8), right.view(np.uint8)):
                raise DataError(
                    f"{pair.head}: in {name!r} ({source.source}) it differs from {pair.embedding}, although the base's "
                    "config.json says tie_word_embeddings: true; expected equal tensors. If the head is really "
                    "untied, set tie_word_embeddings to false in the base's config.json."
                )
