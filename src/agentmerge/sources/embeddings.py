"""How a language model's embedding is called, and the head beside it."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping

    from agentmerge.tensors import TensorSpec

EMBEDDING = re.compile(
    r"^(?P<outer>.*?)"
    r"(?P<inner>model\.(?:language_model|text_model|transformer|decoder)\.|transformer\.embedding\."
    r"|(?:model|transformer|gpt_neox|backbone|decoder)\.|)"
    r"(?P<name>embed_tokens|wte|word_embeddings|tok_embeddings|embed_in)\.weight$"
)
"""The embeddings that we know: what stands before `inner` keeps its head beside it."""
HEAD_OF = {
    "embed_tokens": "lm_head.weight",
    "wte": "lm_head.weight",
    "word_embeddings": "lm_head.weight",
    "tok_embeddings": "output.weight",
    "embed_in": "embed_out.weight",
}
"""How the head beside an embedding is usually called."""
NO_EMBEDDING = re.compile(r"(?:^|\.)(?:talker|visual|vision\w*|audio\w*|encoder|draft\w*|mtp\w*|\w*tower)\.|\.\d+\.")
"""In the names of other embeddings: of another model inside the model, or of one layer."""


def embedding_in(specs: Mapping[str, TensorSpec]) -> str | None:
    """The one embedding of a language model; None where there is none, or several."""
    found = [
        name
        for name, spec in specs.items()
        if len(spec.shape) == 2 and not NO_EMBEDDING.search(name) and EMBEDDING.match(name)
    ]
    return found[0] if len(found) == 1 else None


def usual_head(embedding: str) -> str:
    """How the head beside an embedding is usually called.

    model.embed_tokens has lm_head, thinker.model.embed_tokens thinker.lm_head, model.language_model.embed_tokens
    lm_head, transformer.embedding.word_embeddings transformer.output_layer, model.transformer.wte
    model.transformer.ff_out.
    """
    found = EMBEDDING.match(embedding)
    assert found is not None
    outer, inner, name = found["outer"], found["inner"], found["name"]
    if inner == "transformer.embedding.":
        return f"{outer}transformer.output_layer.weight"
    if inner == "model.transformer." and name == "wte":
        return f"{outer}{inner}ff_out.weight"
    return f"{outer if inner else ''}{HEAD_OF[name]}"
