"""The contract of sources: folders and files pass it, and a source that gives or tells a wrong thing fails."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

from agentmerge.errors import BASE, Role
from agentmerge.testing import assert_source_contract, make_agents

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping
    from pathlib import Path

    from agentmerge.sources.source import Extents, Source, Stored, Weights
    from agentmerge.tensors import Array, Block, TensorSpec


@pytest.fixture
def source(tmp_path: Path) -> Iterator[Source]:
    """An agent of several shards, open."""
    from agentmerge.sources.opening import opened

    made = make_agents(tmp_path, shard_size=20_000)
    with opened(Role("code"), str(made.agents["code"])) as found:
        yield found


@dataclass(frozen=True)
class Through:
    """The weights of another source."""

    weights: Weights

    @property
    def specs(self) -> Mapping[str, TensorSpec]:
        return self.weights.specs

    def read(self, block: Block, out: Array | None = None) -> Array:
        return self.weights.read(block, out)

    def extents(self, block: Block) -> Extents:
        return self.weights.extents(block)

    def stored(self, name: str) -> tuple[Stored, ...]:
        return self.weights.stored(name)


class Shifted(Through):
    """A block from the middle begins one element too early."""

    def read(self, block: Block, out: Array | None = None) -> Array:
        if 0 < block.start < block.stop <= self.specs[block.tensor.name].elements:
            return self.weights.read(replace(block, start=block.start - 1, stop=block.stop - 1), out)
        return self.weights.read(block, out)


class Generous(Through):
    """What lies beyond the end is 0."""

    def read(self, block: Block, out: Array | None = None) -> Array:
        inside = min(block.stop, self.specs[block.tensor.name].elements)
        if inside == block.stop:
            return self.weights.read(block, out)
        found = self.weights.read(replace(block, start=min(block.start, inside), stop=inside))
        return np.concatenate([found, np.zeros(block.elements - found.size, found.dtype)])


class Forgetful(Through):
    """Never fills `out`."""

    def read(self, block: Block, out: Array | None = None) -> Array:
        found = self.weights.read(block, out)
        return found.copy()


class Elsewhere(Through):
    """Its extents lie a byte further."""

    def extents(self, block: Block) -> Extents:
        found = self.weights.extents(block)
        return replace(found, parts=tuple(replace(part, offset=part.offset - 1) for part in found.parts))


class Unaware(Through):
    """It knows of one element how it is stored."""

    def stored(self, name: str) -> tuple[Stored, ...]:
        return (replace(self.weights.stored(name)[0], elements=1),)


class Backwards(Through):
    """Its specs run against the files."""

    @property
    def specs(self) -> Mapping[str, TensorSpec]:
        return dict(reversed(self.weights.specs.items()))


class Unchanged(Through):
    """Says that it is the same weights but for changes, and makes other ones."""

    def under(self, block: Block) -> tuple[Weights, Block] | None:
        return self.weights, block

    def put_over(self, block: Block, old: Array, out: Array) -> Array:
        out[:] = 0
        return out


@dataclass(frozen=True)
class Blind:
    """An identity that notices nothing."""

    identity: Any

    def __getattr__(self, name: str) -> Any:
        return getattr(self.identity, name)

    def restat(self) -> None:
        """Nothing."""


def test_a_folder_keeps_the_contract(source: Source) -> None:
    assert len(source.identity.files) > 1
    before = [(source.identity.folder / file.name).stat().st_mtime_ns for file in source.identity.files]
    assert_source_contract(source)
    assert before == [(source.identity.folder / file.name).stat().st_mtime_ns for file in source.identity.files]


def test_a_single_file_keeps_the_contract(tmp_path: Path) -> None:
    from agentmerge.sources.opening import opened

    file = make_agents(tmp_path).base / "model.safetensors"
    with opened(BASE, str(file)) as source:
        assert not source.folder.whole
        assert_source_contract(source)


@pytest.mark.parametrize(
    ("kind", "complaint"),
    [
        (Shifted, r"elements \[\d+, \d+\): \d+ elements differ"),
        (Generous, "read took a block beyond the end"),
        (Forgetful, "did not return the `out`"),
        (Elsewhere, "said to be verbatim"),
        (Unaware, "how it is stored|stored is"),
        (Unchanged, r"put_over of \[\d+, \d+\): \d+ elements differ"),
        (Backwards, "lies before it in the file"),
    ],
)
def test_wrong_weights_fail(source: Source, kind: type[Through], complaint: str) -> None:
    with pytest.raises(AssertionError, match=complaint):
        assert_source_contract(replace(source, weights=kind(source.weights)))


def test_an_identity_that_notices_nothing_fails(source: Source) -> None:
    with pytest.raises(AssertionError, match="did not notice it"):
        assert_source_contract(replace(source, identity=Blind(source.identity)))
