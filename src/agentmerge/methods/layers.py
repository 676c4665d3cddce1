"""What every method of whole matrices shares: which tensors are linear layers, where their task vectors are formed.

A matrix is [out, in]; a stack of experts, [experts, out, in], is merged matrix by matrix. Experts that are stored as
[experts, in, out] (Llama 4, gpt-oss) need their globs in `transposed` too. Matrices are computed one at a time on
processors, each with all of them, and as many as fit on a GPU.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Sequence
from fnmatch import fnmatchcase
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Literal

import numpy as np
from pydantic import BeforeValidator

from agentmerge.errors import Problem, RecipeError, Where
from agentmerge.kernels import Kernel, formulas
from agentmerge.methods.arrays import Arrays, cuda
from agentmerge.methods.base import Dilution, MergeMethod, Work, added
from agentmerge.methods.task_arithmetic import weighted_sum
from agentmerge.tensors import as_float32

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from agentmerge.methods.base import Precision
    from agentmerge.survey.full.question import Energy
    from agentmerge.survey.overlap import OverlapCounts
    from agentmerge.survey.statistic import Survey
    from agentmerge.tensors import Array, Stack, TensorSpec

LINEAR = ("*proj.weight", "*_proj_*.weight", "*.experts.*.w[123].weight")
"""q_proj, gate_proj, qkv_proj, out_proj ...; kv_a_proj_with_mqa, in_proj_qkvz; the experts of Mixtral."""

NO_DEVICE = Problem(
    "method.device: cuda, but torch is not installed here or finds no CUDA device",
    todo="Install torch with CUDA on a machine with a GPU, or set device: auto.",
    where=Where(path="method.device"),
)

Device = Literal["auto", "cpu", "cuda"]


def _globs(value: Any) -> Any:
    return tuple(value.split(",")) if isinstance(value, str) else value


Globs = Annotated[tuple[str, ...], BeforeValidator(_globs)]
"""Patterns of tensor names; in a text, commas lie between them."""


class WholeMatrices(MergeMethod):
    """A method that merges each matrix of a linear layer as a whole; abstract.

    A subclass says what becomes of one matrix (`update`), and what that takes (`matrix_flop`, `matrix_bytes`,
    `precision`).
    """

    in_words: ClassVar[str] = "no multiplier in linear layers"
    """What becomes of an element of a matrix that one agent alone changed."""

    linear: Globs = LINEAR
    """Globs of the matrices that are linear layers; the shape must fit too."""
    transposed: Globs = ()
    """Globs of those that are stored [in, out]."""
    others: Literal["mean", "sum", "base"] = "mean"
    """What becomes of every other tensor: the mean or the sum of the task vectors, or nothing."""
    device: Device = "auto"
    """Where matrices are computed; auto is cuda where torch finds it."""

    @abstractmethod
    def update(self, vectors: Vectors, arrays: Arrays) -> Any:
        """M of merged = base + M of one matrix: [out, in], an array of that library in any float dtype; None is 0."""

    @abstractmethod
    def matrix_flop(self, rows: int, columns: int, agents: int) -> float:
        """What `update` takes of a matrix [rows, columns]."""

    @abstractmethod
    def matrix_bytes(self, rows: int, columns: int, agents: int) -> int:
        """What `update` holds at most, the task vectors among it."""

    def factor(self, stack: Stack, survey: Survey) -> float:
        """What the update of one matrix is multiplied by, as answers tell it."""
        return 1.0

    @property
    def others_scale(self) -> float:
        """What the update of every other tensor is multiplied by."""
        return 1.0

    @property
    def precision(self) -> Precision:
        """Of the numbers that most of the arithmetic of `update` is done with."""
        return "float64"

    def is_linear(self, tensor: TensorSpec) -> bool:
        """Whether shape and name are those of a linear layer, or of a stack of them."""
        return is_matrix(tensor) and matches(tensor.name, self.linear)

    def is_turned(self, tensor: TensorSpec) -> bool:
        """Whether it is stored [in, out]."""
        return matches(tensor.name, self.transposed)

    def merge(self, stack: Stack, survey: Survey) -> Array:
        """The definition, float32 [n]; a linear layer must be whole."""
        if not self.is_linear(stack.block.tensor):
            return added(stack.base, self._plain(stack))
        turned = self.is_turned(stack.block.tensor)

        def merged(piece: Stack, arrays: Arrays) -> Array:
            vectors = Vectors(piece, arrays, turned=turned)
            update, factor = self.update(vectors, arrays), self.factor(piece, survey)
            if update is not None and factor != 1:
                update = update * factor
            if update is None:
                update = np.zeros(piece.base.size, np.float32)
            elif turned:
                update = update.T
            return arrays.added(vectors.base, arrays.put(update, "float32").reshape(-1))

        return matrix_by_matrix(self, stack, available(self.device), merged)

    def work(self, tensor: TensorSpec, agents: int) -> Work:
        """Linear layers whole and one at a time: a matrix takes all processors, and much memory, by itself.

        It also keeps the bytes the same for any worker count: a BLAS splits its sums by the threads that it has.
        """
        if not self.is_linear(tensor):
            return Work()
        rows, columns = tensor.shape[-2:]
        if self.is_turned(tensor):
            rows, columns = columns, rows
        agents = max(agents, 1)  # where a rule skips all of them
        flop = tensor.elements // (rows * columns) * self.matrix_flop(rows, columns, agents)
        needed = self.matrix_bytes(rows, columns, agents)
        return matrix_work(self.device, flop, needed, self.precision, 4 * rows * columns)

    @property
    def loops(self) -> tuple[str, ...]:
        """See MergeMethod.loops."""
        return ("given", "linear")

    def kernel(self, stack: Stack, survey: Survey) -> Iterable[Kernel] | None:
        """Of what is no linear layer."""
        if self.is_linear(stack.block.tensor):
            return None
        scale, divisor = (
            float(self.others != "base") * self.others_scale,
            float(len(stack.agents) if self.others == "mean" else 1),
        )
        return (Kernel("linear", formulas.Linear(self.overlap.threshold, stack.weight(), scale, divisor), stack),)

    def dilution(self, names: Sequence[str], counts: OverlapCounts, energy: Energy) -> Dilution:
        """What an element gets depends on its whole matrix."""
        return Dilution.unknown(len(names), f"{self.in_words}; {self._beside} elsewhere")

    @property
    def _beside(self) -> str:
        """The multiplier of an element of the other tensors, in words."""
        return {"mean": "1 / N", "sum": "1", "base": "0"}[self.others]

    def _plain(self, stack: Stack) -> Array:
        """The update of what is no linear layer, float32 [n]."""
        if self.others == "base":
            return np.zeros(stack.base.size, np.float32)
        total = weighted_sum(stack) * np.float32(self.others_scale)
        return total / np.float32(1 if self.others == "sum" else len(stack.agents))


class Vectors(Sequence[Any]):
    """The task vectors of one matrix that are not zero, float32 [out, in] each, formed when they are asked for."""

    def __init__(self, stack: Stack, arrays: Arrays, *, turned: bool) -> None:
        """See the class.

        Args:
            stack: one whole matrix of base and agents.
            arrays: where they are formed.
            turned: whether it is stored [in, out].
        """
        self.stack, self.turned, self._arrays = stack, turned, arrays
        self.base = arrays.base(stack)
        """The base's numbers as they are stored, float32 [n]."""
        self.changed = tuple(t for t in range(len(stack.agents)) if stack.weight()[t] != 0 and moved(stack, t))
        """Whose task vectors these are."""

    @property
    def agents(self) -> int:
        """How many agents there are, those that changed nothing included."""
        return len(self.stack.agents)

    @property
    def shape(self) -> tuple[int, int]:
        """[out, in]."""
        rows, columns = self.stack.block.tensor.shape[-2:]
        return (columns, rows) if self.turned else (rows, columns)

    def __len__(self) -> int:
        return len(self.changed)

    def __getitem__(self, index: Any) -> Any:
        if isinstance(index, slice):
            return [self[i] for i in range(*index.indices(len(self)))]
        tau = self._arrays.task_vector(self.stack, self.base, self.changed[index])
        tau = tau.reshape(self.stack.block.tensor.shape[-2:])
        return tau.T if self.turned else tau


def matrix_by_matrix(
    method: MergeMethod, stack: Stack, arrays: Arrays | None, merged: Callable[[Stack, Arrays], Array]
) -> Array:
    """What `merged` makes of each matrix of a stack of one tensor, float32 [n].

    Args:
        method: whose merge it is, for complaints.
        stack: a whole tensor, [out, in] or [experts, out, in].
        arrays: where it is computed; None where the settings want a GPU that is not there.
        merged: float32 [out * in] of the stack of one matrix.

    Raises:
        RecipeError: not all of the tensor is there, or no GPU.
    """
    tensor = stack.block.tensor
    if stack.base.size != tensor.elements:
        raise RecipeError(
            f"method: '{method.name}' must see {tensor.name} whole, but what wraps it gives it elements "
            f"{stack.block.start} to {stack.block.stop}",
            todo="Use it by itself.",
            where=Where(tensor=tensor.name),
        )
    if arrays is None:
        raise RecipeError(NO_DEVICE)
    rows, columns = tensor.shape[-2:]
    if stack.base.size == rows * columns:
        with arrays.computing():
            return merged(stack, arrays)
    together = np.empty(stack.base.size, np.float32)
    for piece in stack.pieces(rows * columns):
        with arrays.computing():
            together[piece.block.start : piece.block.stop] = merged(piece, arrays)
    return together


def matrix_work(device: Device, flop: float, needed: int, precision: Precision, output: int) -> Work:
    """What a tensor of matrices takes.

    Args:
        device: the setting.
        flop: of all of its matrices.
        needed: bytes that one of them takes where it is computed.
        precision: of what is computed.
        output: bytes of one result, which comes back from a GPU.
    """
    arrays = available(device)
    if arrays is None:
        return Work("tensor", flop, needed, share=1.0, device=device, problem=NO_DEVICE)
    beside = needed if arrays.device == "cpu" else output
    return Work("tensor", flop, beside, arrays.share(needed), precision, arrays.device)


def available(device: Device) -> Arrays | None:
    """Where matrices are computed; None where the settings want a GPU that is not there."""
    if device == "cpu":
        return Arrays()
    return cuda() or (None if device == "cuda" else Arrays())


def is_matrix(tensor: TensorSpec) -> bool:
    """Whether the shape is that of a matrix, or of a stack of them, with both dimensions above 1."""
    return len(tensor.shape) in (2, 3) and min(tensor.shape[-2:]) > 1 and tensor.elements > 0


def matches(name: str, globs: Iterable[str]) -> bool:
    """Whether one of the globs fits the whole name."""
    return any(fnmatchcase(name, glob) for glob in globs)


def moved(stack: Stack, t: int) -> bool:
    """Whether agent t changed anything."""
    if stack.tau is not None:
        return bool(stack.tau[t].any())
    agent = stack.agents[t]
    if agent.dtype == stack.base.dtype:
        return any(not np.array_equal(a, b) for a, b in zip(*map(_pieces, (agent, stack.base)), strict=True))
    return bool((as_float32(agent) != as_float32(stack.base)).any())


def _pieces(array: Array) -> list[Array]:
    """Parts of an array, so that the first difference is found soon."""
    return np.array_split(array, max(array.size // 65536, 1))
