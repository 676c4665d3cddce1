"""The header of a packed delta: the room that is kept for it before anything is known, and its metadata."""

from __future__ import annotations

from typing import TYPE_CHECKING

from agentmerge.errors import SourceError, shortened
from agentmerge.files.header import encode_header
from agentmerge.sources.packed_format import FILES, FORMS, KEY, MANIFEST, RANKS, VERSION, entries_of
from agentmerge.tensors import TensorSpec

if TYPE_CHECKING:
    from collections.abc import Sequence

    from agentmerge.sources.packed_format import Manifest

METADATA_ROOM = 1024
"""Bytes of a header's metadata that are only known at the end."""


def header_room(specs: Sequence[TensorSpec]) -> int:
    """Bytes of the longest header that these tensors may need: every form of each, every number at its largest."""
    names = {spec.name for spec in specs}
    reserved = names & {RANKS, FILES, MANIFEST}
    if reserved:
        raise SourceError(f"the agent has tensors of our names: {shortened(sorted(reserved))}", expected="other names")
    longest = {
        entry.name: entry
        for spec in specs
        for form in FORMS
        for entry in entries_of(spec, form, spec.elements)
        if entry.name not in names or form == "whole"
    }
    ends = [TensorSpec(name, "I64", (1 << 40,)) for name in (RANKS, FILES, MANIFEST)]
    return len(encode_header([*longest.values(), *ends], {"": " " * METADATA_ROOM}))


def metadata_of(manifest: Manifest) -> dict[str, str]:
    """What other readers of sparse deltas look for, and what tells ours from them."""
    elements = sum(tensor.spec.elements for tensor in manifest.tensors)
    changed = sum(tensor.changed for tensor in manifest.tensors)
    return {
        "format": "pt",
        KEY: str(VERSION),
        "sparse": "true",
        "sparsity": f"{1 - changed / max(elements, 1):.6f}",
        "changed_params": str(changed),
        "model_version": "1",
        "base_version": "0",
        "base_model": manifest.base,
    }
