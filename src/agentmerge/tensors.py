"""Names for the data: what a tensor, a block, a stack and an output cast are. Knows no files and no methods."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from math import lcm, prod
from typing import TYPE_CHECKING, Any, Literal

import numpy as np  # isort: skip - first: interrupted in the compiled code of the next, it prints a traceback
import ml_dtypes

from agentmerge.randomness import random_bits, stream_key

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

Array = np.ndarray[Any, np.dtype[Any]]
Reach = Literal["element", "row", "matrix", "tensor"]
"""What must be seen of a tensor at a time: any elements, whole rows, whole matrices (of the last two axes), or all."""
Rounding = Literal["nearest", "stochastic"]

DTYPES: dict[str, np.dtype[Any]] = {
    "F64": np.dtype(np.float64),
    "F32": np.dtype(np.float32),
    "F16": np.dtype(np.float16),
    "BF16": np.dtype(ml_dtypes.bfloat16),
    "F8_E4M3": np.dtype(ml_dtypes.float8_e4m3fn),
    "F8_E5M2": np.dtype(ml_dtypes.float8_e5m2),
    "I64": np.dtype(np.int64),
    "I32": np.dtype(np.int32),
    "I16": np.dtype(np.int16),
    "I8": np.dtype(np.int8),
    "U64": np.dtype(np.uint64),
    "U32": np.dtype(np.uint32),
    "U16": np.dtype(np.uint16),
    "U8": np.dtype(np.uint8),
    "BOOL": np.dtype(np.bool_),
}
"""Every dtype that can be read, by its safetensors spelling."""

SPELLINGS = {
    **dict.fromkeys(("bf16",), "bfloat16"),
    **dict.fromkeys(("fp16", "f16", "half"), "float16"),
    **dict.fromkeys(("fp32", "f32", "float", "single"), "float32"),
    **dict.fromkeys(("fp64", "f64", "double"), "float64"),
}
"""What people write for the names that torch and numpy have for dtypes, in small letters."""

MERGEABLE = frozenset({"F64", "F32", "F16", "BF16"})
"""The dtypes a method works on; every other tensor is copied."""

LEAF = 2048
"""Elements of a leaf, the piece that float sums are taken over; every block starts at a multiple of it."""
RUNNING = 64
"""Running sums within a leaf: element i of a leaf is added to the sum i % RUNNING, then they are folded in halves."""
MIX = 0x9E3779B1
"""An odd constant that spreads an index over 32 bits."""


def dtype_name(written: Any) -> Any:
    """The name of a dtype, such as "bfloat16", for any spelling of it: "bf16", "torch.bfloat16", or a dtype itself.

    What is no dtype stays as it is.
    """
    if written is None or isinstance(written, bool | int | float | list | tuple | dict):
        return written
    text = written if isinstance(written, str) else getattr(written, "__name__", str(written))
    short = text.strip().lower().removeprefix("torch.")
    return SPELLINGS.get(short, short if short in SPELLINGS.values() else written)


@dataclass(frozen=True, slots=True)
class Experts:
    """How the matrices of a stack of experts lie in its tensor, as shapes and architecture tell (alike/fused.py)."""

    turned: bool | None = None
    """[experts, in, out] and not [experts, out, in]; None where nothing tells."""
    joined: Literal["", "halves", "pairs"] = ""
    """Whether each expert's outputs are those of two matrices, gate and up: one behind the other, or by turns."""
    part: str = ""
    """Of a tensor that was taken apart (methods/parts.py): which matrix it is, "gate" or "up"."""


@dataclass(frozen=True, slots=True)
class TensorSpec:
    """One named array of a checkpoint, without its data."""

    name: str
    dtype: str
    """safetensors spelling, for example "BF16"."""
    shape: tuple[int, ...]
    experts: Experts | None = field(default=None, compare=False)
    """Of a stack of experts, as the plan knows it; None of all else, and of what is not known as such."""

    @property
    def elements(self) -> int:
        """Scalars in the tensor; 1 for a zero-dimensional one."""
        return prod(self.shape)

    @property
    def columns(self) -> int:
        """Elements of a row: of the last axis; a tensor of one axis is one row."""
        return self.shape[-1] if len(self.shape) > 1 else self.elements

    @property
    def rows_and_leaves(self) -> int:
        """The fewest elements, from the tensor's start on, that are both whole rows and whole leaves."""
        return lcm(max(self.columns, 1), LEAF)

    @property
    def nbytes(self) -> int:
        """Bytes of the tensor as stored."""
        return self.elements * DTYPES[self.dtype].itemsize


@dataclass(frozen=True, slots=True)
class Block:
    """The flat elements [start, stop) of one tensor: an address, not data."""

    tensor: TensorSpec
    start: int
    stop: int

    @property
    def elements(self) -> int:
        """Scalars in the block."""
        return self.stop - self.start


@dataclass(frozen=True, slots=True)
class Stack:
    """One block of the base and of every agent, flat, each in its stored dtype; agents in sorted-name order."""

    block: Block
    base: Array
    agents: tuple[Array, ...]
    names: tuple[str, ...]
    weights: tuple[float, ...] = ()
    extra: Mapping[str, tuple[Array, ...]] = field(default_factory=dict)
    """What a method asked to read beside the weights, for example "importance"."""
    stored: tuple[Array, ...] = ()
    """The agents as read where some of `agents` are not that (see alike.storage); () where all are."""
    absent: frozenset[str] = frozenset()
    """Agents that are skipped here or lack the tensor: they count as the base itself, and have no importance."""
    grams: tuple[Array | None, ...] = ()
    """Where the method reads them: each agent's Gram matrix of the inputs of this layer, whole whatever the block,
    [in, in] or [experts, in, in]; None of an agent that is absent."""
    keep: Array | None = None
    """The same of the base, of what it must keep; None where the method reads none or nothing was measured here."""
    tau: Array | None = None
    """Task vectors that a wrapping method made, float32 [agents, n]; None: those of the agents themselves."""

    def task_vectors(self) -> Array:
        """tau[t] = float32(agent[t]) - float32(base), float32 [agents, n]."""
        if self.tau is not None:
            return self.tau
        base = as_float32(self.base)
        with np.errstate(over="ignore", invalid="ignore"):
            return np.stack([as_float32(agent) - base for agent in self.agents])

    def values(self, agent: int) -> Array:
        """An agent's own numbers, float32 [n]; base + tau where a wrapping method made the task vectors."""
        return as_float32(self.agents[agent]) if self.tau is None else as_float32(self.base) + self.tau[agent]

    def weight(self) -> Array:
        """The agents' weights, float32 [agents]; 1 where none are given."""
        return np.array(self.weights or (1.0,) * len(self.agents), np.float32)

    def pieces(self, elements: int = 32 * LEAF) -> Iterator[Stack]:
        """The same stack in consecutive parts that fit a processor's cache; views, no copies.

        Args:
            elements: of a part, a multiple of LEAF.
        """
        for low in range(0, self.base.size, elements):
            yield self.part(low, min(low + elements, self.base.size))

    def part(self, low: int, high: int) -> Stack:
        """Elements [low, high) of the same stack, counted from its own start; views, no copies."""
        part, first = slice(low, high), self.block.start
        return replace(
            self,
            block=Block(self.block.tensor, first + low, first + high),
            base=self.base[part],
            agents=tuple(agent[part] for agent in self.agents),
            extra={name: tuple(array[part] for array in arrays) for name, arrays in self.extra.items()},
            stored=tuple(array[part] for array in self.stored),
            tau=None if self.tau is None else self.tau[:, part],
        )


@dataclass(frozen=True, slots=True)
class Cast:
    """How float32 results become stored numbers: the output dtype and the rounding."""

    dtype: str
    """safetensors spelling."""
    rounding: Rounding = "nearest"
    seed: int = 0

    def key(self, tensor: str) -> tuple[int, int]:
        """The Philox key of this tensor's rounding draws."""
        return stream_key(self.seed, "rounding", "", tensor)

    def apply(self, values: Array, tensor: str, start: int) -> Array:
        """Round float32 values once to the output dtype.

        nearest: ties to even. stochastic: x between neighbours low < x < high becomes high with probability
        (x - low) / (high - low), drawn from Philox at the element's index in its tensor.

        Args:
            values: float32 [n].
            tensor: name of the tensor, part of the random key.
            start: flat index of values[0] in the tensor.

        Returns:
            [n] in the output dtype; magnitudes beyond its largest number are inf (counted as overflow later).
        """
        target = DTYPES[self.dtype]
        if self.rounding == "nearest" or self.dtype not in _GRIDS:
            with np.errstate(over="ignore", invalid="ignore"):
                return values.astype(target)
        return stochastic_round(values, self.dtype, random_bits(self.key(tensor), start, values.size))


_GRIDS = {"BF16": (7, -126), "F16": (10, -14)}  # stored mantissa bits, exponent of the smallest normal number


def stochastic_round(values: Array, dtype: str, bits: Array) -> Array:
    """Round float32 to BF16 or F16, up with the probability of the fraction, subnormals included.

    q = |x| / ulp(x) is exact in float32; the result is sign(x) * (floor(q) + [bits < frac(q) * 2^32]) * ulp(x).

    Args:
        values: float32 [n].
        dtype: "BF16" or "F16".
        bits: uint32 [n], uniform.

    Returns:
        [n] in `dtype`; unbiased up to 2^-32. NaN stays NaN, inf stays inf.
    """
    mantissa, lowest = _GRIDS[dtype]
    magnitude = np.abs(values)
    finite = np.isfinite(values)
    exponent = np.frexp(np.where(finite, magnitude, np.float32(0)))[1] - 1
    shift = np.maximum(exponent, lowest) - mantissa
    with np.errstate(over="ignore", invalid="ignore"):
        steps = np.ldexp(magnitude, -shift)
        floor = np.floor(steps)
        up = bits < (np.where(finite, steps - floor, 0).astype(np.float64) * 2.0**32)
        rounded = np.ldexp(floor + up.astype(np.float32), shift)
        return np.copysign(np.where(finite, rounded, magnitude), values).astype(DTYPES[dtype])


def as_float32(array: Array) -> Array:
    """The stored numbers as float32 [n]; exact for BF16, F16 and F32, rounded for F64."""
    with np.errstate(over="ignore", invalid="ignore"):  # a signalling NaN is told by Integrity, not by numpy
        return array if array.dtype == np.float32 else array.astype(np.float32)


def float32_bits(array: Array) -> Array:
    """The bits of `as_float32`, uint32 [n]; of a float16 NaN its own, which numpy makes quiet on some processors."""
    bits = as_float32(array).view(np.uint32)
    if array.dtype != np.float16:
        return bits
    stored = array.view(np.uint16).astype(np.uint32)
    own = (stored & 0x8000) << 16 | 0x7F800000 | (stored & 0x3FF) << 13
    return np.where(np.isnan(array), own, bits)
