"""Where every tensor of an output lies, to the byte, decided before anything is read."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import TYPE_CHECKING

from agentmerge.files.header import encode_header

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from agentmerge.tensors import TensorSpec

INDEX = "model.safetensors.index.json"
"""Which file holds which tensor, where there are several."""
FORMAT = {"format": "pt"}
"""Metadata without which transformers refuses to load a file."""


@dataclass(frozen=True, slots=True)
class Place:
    """Where one tensor lies."""

    shard: int
    """Index in Layout.shards."""
    offset: int
    """Absolute, in bytes from the start of the shard file."""
    spec: TensorSpec


@dataclass(frozen=True, slots=True)
class ShardLayout:
    """One file of the output."""

    name: str
    header: bytes
    size: int
    """Bytes of the whole file, header included."""
    specs: tuple[TensorSpec, ...]
    """In the order of their data."""


@dataclass(frozen=True, slots=True)
class Layout:
    """Every file of the output's weights, to the byte."""

    shards: tuple[ShardLayout, ...]
    places: Mapping[str, Place]
    """By tensor name, in the order of the data."""
    total_size: int
    """Bytes of data, without the headers."""

    @property
    def file_bytes(self) -> int:
        """Bytes of every file, headers included."""
        return sum(shard.size for shard in self.shards)


def plan_layout(specs: Sequence[TensorSpec], shard_size: int, metadata: Mapping[str, str] | None = None) -> Layout:
    """Divide the tensors, in their order, into shards of at most `shard_size` bytes of data.

    A new shard begins with the tensor that would not fit; a larger one has a shard of its own.

    Args:
        specs: the output's tensors, in output dtypes.
        shard_size: bytes, at least 1.
        metadata: goes into every shard's header, beside {"format": "pt"}, which it can't replace.

    Raises:
        ValueError: shard_size under 1, or two tensors of one name.
    """
    if shard_size < 1:
        raise ValueError(f"shard_size is {shard_size} bytes, expected at least 1")
    groups = _groups(specs, shard_size)
    texts = {**(metadata or {}), **FORMAT}
    shards = tuple(_shard(shard_name(i, len(groups)), group, texts) for i, group in enumerate(groups))
    places = {place.spec.name: place for i, shard in enumerate(shards) for place in _places(i, shard)}
    if len(places) < len(specs):
        raise ValueError("two shards would hold a tensor of the same name, expected every name once")
    return Layout(shards, places, sum(spec.nbytes for spec in specs))


def shard_name(index: int, count: int) -> str:
    """The file name of shard `index`, from 0 on, of `count`; as transformers and vLLM expect it."""
    return "model.safetensors" if count == 1 else f"model-{index + 1:05d}-of-{count:05d}.safetensors"


def index_json(layout: Layout) -> bytes | None:
    """The content of INDEX; None for one shard, which needs none."""
    if len(layout.shards) == 1:
        return None
    content = {
        "metadata": {
            "total_size": layout.total_size,
            "total_parameters": sum(place.spec.elements for place in layout.places.values()),
        },
        "weight_map": {name: layout.shards[place.shard].name for name, place in layout.places.items()},
    }
    return (json.dumps(content, indent=2, sort_keys=True) + "\n").encode()


def _groups(specs: Sequence[TensorSpec], shard_size: int) -> list[list[TensorSpec]]:
    groups: list[list[TensorSpec]] = [[]]
    filled = 0
    for spec in specs:
        if filled and filled + spec.nbytes > shard_size:
            groups.append([])
            filled = 0
        groups[-1].append(spec)
        filled += spec.nbytes
    return groups


def _shard(name: str, specs: Sequence[TensorSpec], metadata: Mapping[str, str]) -> ShardLayout:
    header = encode_header(specs, metadata)
    return ShardLayout(name, header, len(header) + sum(spec.nbytes for spec in specs), tuple(specs))


def _places(index: int, shard: ShardLayout) -> list[Place]:
    places, offset = [], len(shard.header)
    for spec in shard.specs:
        places.append(Place(index, offset, spec))
        offset += spec.nbytes
    return places
