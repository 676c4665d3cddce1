"""Weights that a low-rank adapter changes: product and base added block by block, in an order that no block changes.

    agent[i, j] = round(float32(base[i, j]) + scale * sum over k = 1..rank, in this order, of left[i, k] * right[k, j])

Every operation is one of float32, rounded once (float64 where the base is): the same bits on every machine, whatever
the blocks. A matrix product of a library is neither. `left` is B and `right` is A; where the base stores its matrix
[in, out], and of an embedding, `left` is A transposed and `right` is B transposed.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np

from agentmerge import kernels
from agentmerge.sources.placed import room_for
from agentmerge.sources.source import NOWHERE, Extents, Stored
from agentmerge.tensors import DTYPES, Array, Block, Stack, TensorSpec

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from agentmerge.files.reading import Extent
    from agentmerge.sources.source import Weights

STEP = 1 << 16
"""Elements computed at a time, at least a row: they stay in a processor's cache."""


@dataclass(frozen=True, slots=True)
class Stock:
    """A stored tensor: of the base, or of the adapter's file."""

    weights: Weights
    name: str

    @property
    def spec(self) -> TensorSpec:
        """As it is stored."""
        return self.weights.specs[self.name]

    def read(self, start: int, stop: int) -> Array:
        """Its flat elements [start, stop)."""
        return self.weights.read(Block(self.spec, start, stop))


@dataclass(frozen=True, slots=True)
class Product:
    """What is added to a tensor."""

    left: Stock
    """B [rows, rank]; transposed: A [rank, rows]; of a bias, the addend [rows] itself."""
    right: Stock | None
    """A [rank, columns]; transposed: B [columns, rank]; None for a bias."""
    rank: int
    transposed: bool
    scale: float

    def left_rows(self, first: int, last: int, dtype: np.dtype[np.generic]) -> Array:
        """Rows [first, last) of the left factor: [rows, rank]."""
        if not self.transposed:
            return self.left.read(first * self.rank, last * self.rank).astype(dtype).reshape(-1, self.rank)
        rows = self.left.spec.elements // self.rank
        parts = [self.left.read(k * rows + first, k * rows + last).astype(dtype) for k in range(self.rank)]
        return np.stack(parts, axis=1)

    def right_rows(self, dtype: np.dtype[np.generic]) -> Array:
        """The right factor, [rank, columns]; 1 for a bias."""
        if self.right is None:
            return np.ones((1, 1), dtype)
        whole = self.right.read(0, self.right.spec.elements).astype(dtype)
        if self.transposed:
            return np.ascontiguousarray(whole.reshape(-1, self.rank).T)
        return whole.reshape(self.rank, -1)


@dataclass(frozen=True, slots=True)
class Part:
    """One tensor of the agent."""

    spec: TensorSpec
    under: Stock
    """What it is, before anything is added."""
    product: Product | None = None

    @property
    def verbatim(self) -> bool:
        """Whether it is read as it is stored."""
        return self.product is None and self.under.spec.dtype == self.spec.dtype


class LowRankWeights:
    """A base and what an adapter changes of it. A Weights."""

    def __init__(self, text: str, parts: Mapping[str, Part]) -> None:
        """See the class.

        Args:
            text: what the user wrote, for messages.
            parts: every tensor, in the order of the base.
        """
        self._text, self.parts = text, parts
        self.specs: Mapping[str, TensorSpec] = {name: part.spec for name, part in parts.items()}

    def read(self, block: Block, out: Array | None = None) -> Array:
        """See Weights.read."""
        out = room_for(block, self.specs, self._text, out)
        part = self.parts[block.tensor.name]
        inner = Block(part.under.spec, block.start, block.stop)
        if part.verbatim:
            return part.under.weights.read(inner, out)
        return self.put_over(block, part.under.weights.read(inner), out)

    def under(self, block: Block) -> tuple[Weights, Block] | None:
        """See Over.under."""
        part = self.parts.get(block.tensor.name)
        return None if part is None else (part.under.weights, Block(part.under.spec, block.start, block.stop))

    def put_over(self, block: Block, old: Array, out: Array) -> Array:
        """See Over.put_over."""
        part = self.parts[block.tensor.name]
        with np.errstate(over="ignore", invalid="ignore", under="ignore"):
            if part.product is None:
                out[:] = old.astype(out.dtype)
            else:
                _add(part.product, part.spec.shape, block.start, old, out)
        return out

    def extents(self, block: Block) -> Extents:
        """See Weights.extents."""
        part = self.parts.get(block.tensor.name)
        if part is None or block.stop > part.spec.elements:
            return NOWHERE
        found = part.under.weights.extents(Block(part.under.spec, block.start, block.stop))
        if part.product is None:
            return found if part.verbatim else replace(found, verbatim=False)
        factors = (*found.parts, *self._factors(part.product, part.spec.shape, block))
        return Extents(factors, verbatim=False)

    def stored(self, name: str) -> tuple[Stored, ...]:
        """See Weights.stored."""
        part = self.parts[name]
        return part.under.weights.stored(part.under.name) if part.verbatim else (
            Stored(part.spec.dtype, part.spec.elements),
        )  # fmt: skip

    def _factors(self, product: Product, shape: tuple[int, ...], block: Block) -> Iterator[Extent]:
        first, last = _rows(shape, block.start, block.stop)
        spec, rank = product.left.spec, product.rank
        rows = spec.elements // rank if rank else 0
        ranges = [(k * rows + first, k * rows + last) for k in range(rank)] if product.transposed else [
            (first * rank, last * rank)
        ]  # fmt: skip
        for low, high in ranges:
            yield from product.left.weights.extents(Block(spec, low, high)).parts
        if product.right is not None:
            yield from product.right.weights.extents(Block(product.right.spec, 0, product.right.spec.elements)).parts


def _rows(shape: tuple[int, ...], start: int, stop: int) -> tuple[int, int]:
    """The rows that hold the elements [start, stop); a bias has one element in each."""
    columns = shape[1] if len(shape) == 2 else 1
    return (start // columns, -(-stop // columns)) if columns and stop > start else (0, 0)


def _add(product: Product, shape: tuple[int, ...], start: int, stored: Array, out: Array) -> None:
    """Write base + product for the elements that begin at `start`.

    Args:
        product: what is added.
        shape: of the tensor.
        start: flat index of the first element.
        stored: of the base, [n].
        out: [n], in the dtype of the result.
    """
    stop, columns = start + out.size, shape[1] if len(shape) == 2 else 1
    first, last = _rows(shape, start, stop)
    if first == last:
        return
    dtype = DTYPES["F64"] if stored.dtype == np.float64 else DTYPES["F32"]
    left, right = product.left_rows(first, last, dtype), product.right_rows(dtype)
    step = max(1, STEP // columns)
    for low in range(first, last, step):
        high = min(low + step, last)
        begin, end = max(low * columns, start), min(high * columns, stop)
        grown = _product(left[low - first : high - first], right, dtype.type(product.scale)).reshape(-1)
        here = slice(begin - start, end - start)
        out[here] = (stored[here].astype(dtype) + grown[begin - low * columns : end - low * columns]).astype(out.dtype)


def product(left: Array, right: Array, scale: np.floating) -> Array:
    """Scale * sum over k of left[:, k] * right[k, :], summed in the order of k: [rows, columns]; the definition.

    Args:
        left: [rows, rank], rank at least 1.
        right: [rank, columns].
        scale: of their dtype.
    """
    total = np.multiply(left[:, :1], right[:1])
    term = np.empty_like(total)
    for k in range(1, right.shape[0]):
        np.multiply(left[:, k : k + 1], right[k : k + 1], out=term)
        total += term
    total *= scale
    return total


def _product(left: Array, right: Array, scale: np.floating) -> Array:
    """The same, compiled where that fits."""
    block = Block(TensorSpec("", "F32", (left.size,)), 0, left.size)
    backend = kernels.choose(Stack(block, left.reshape(-1), (right.reshape(-1),), ("",)))
    if backend is None or left.dtype != np.float32:
        return product(left, right, scale)
    return backend.low_rank(left, right, float(scale))
