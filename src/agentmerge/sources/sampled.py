"""Samples of weights: what tells, by a few reads, whether they are those that something was made of."""

from __future__ import annotations

from dataclasses import dataclass
from hashlib import sha256
from typing import TYPE_CHECKING, NamedTuple

from agentmerge.files.positional import flat_bytes
from agentmerge.sources.packed import PackedWeights
from agentmerge.sources.prefixes import by_common_name, common_name
from agentmerge.tensors import MERGEABLE, Block

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping

    from agentmerge.sources.source import Weights
    from agentmerge.tensors import TensorSpec

SAMPLED, PIECE = 256, 4096
"""Tensors of a checkpoint that are looked at, and elements of each."""


class Sample(NamedTuple):
    """What one tensor holds in its middle."""

    dtype: str
    shape: tuple[int, ...]
    digest: str
    """16 hexadecimal digits of the SHA-256 of its up to PIECE elements, as they are read."""


@dataclass(frozen=True, slots=True)
class Compared:
    """How weights are, beside samples; tensors that they lack, or have in another dtype or shape, tell nothing."""

    equal: frozenset[str]
    differing: tuple[str, ...]
    """Under the samples' names."""
    certain: str
    """The first of them that is no sum or rounding, which may come out differently elsewhere; "" for none."""

    @property
    def same(self) -> bool:
        """Whether these are the weights that were sampled."""
        return bool(self.equal) and not self.differing


def middle(spec: TensorSpec) -> Block:
    """The up to PIECE elements in the middle of a tensor."""
    start = max(spec.elements - PIECE, 0) // 2
    return Block(spec, start, min(start + PIECE, spec.elements))


def sampled(weights: Weights, wanted: Callable[[str], bool]) -> dict[str, Sample]:
    """Samples of up to SAMPLED tensors, matrices first: the same however the weights are divided into files.

    Args:
        weights: whose numbers are here.
        wanted: whether a tensor may be looked at, by name.

    Raises:
        SourceError: they can't be read.
    """
    chosen = in_turn(spec for spec in weights.specs.values() if wanted(spec.name))
    return {spec.name: _sample(weights, spec) for spec in chosen[:SAMPLED]}


def in_turn(specs: Iterable[TensorSpec]) -> list[TensorSpec]:
    """Those that can be looked at, in the order in which they are: matrices first, else as if at random."""
    found = [spec for spec in specs if spec.dtype in MERGEABLE and spec.elements]
    return sorted(found, key=lambda spec: (len(spec.shape) < 2, sha256(spec.name.encode()).digest()))


def compared(samples: Mapping[str, Sample], weights: Weights) -> Compared:
    """Look at the tensors of samples in weights; prefixes of names aside.

    Args:
        samples: by name.
        weights: whose numbers are here.

    Raises:
        SourceError: they can't be read.
    """
    names, equal, differing, certain = by_common_name(weights.specs), set(), [], ""
    for name, sample in samples.items():
        spec = weights.specs.get(name) or weights.specs.get(names.get(common_name(name), ""))
        if spec is None or (spec.dtype, spec.shape) != sample[:2]:
            continue
        if _sample(weights, spec) == sample:
            equal.add(name)
            continue
        differing.append(name)
        if not certain and _as_trained(weights, spec):
            certain = name
    return Compared(frozenset(equal), tuple(differing), certain)


def _as_trained(weights: Weights, spec: TensorSpec) -> bool:
    """Whether a tensor's numbers are those of a file: a sum or a rounding may come out differently elsewhere.

    A packed delta keeps what its agent's files were; where there are none, the agent may have been an adapter.
    """
    if isinstance(weights, PackedWeights):
        return bool(weights.manifest.weights)
    return weights.extents(middle(spec)).verbatim


def _sample(weights: Weights, spec: TensorSpec) -> Sample:
    found = sha256(bytes(flat_bytes(weights.read(middle(spec))))).hexdigest()
    return Sample(spec.dtype, spec.shape, found[:16])
