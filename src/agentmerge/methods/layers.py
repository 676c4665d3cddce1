"""What every method of whole matrices shares: which tensors are linear layers, where their task vectors are formed.

A matrix is [out, in]; a stack of experts, [experts, out, in] or [experts, in, out], is merged matrix by matrix, gate
and up each for itself where they are stored as one (methods/parts.py), so that the result is that of the same experts
in tensors of their own. Which way round a stack lies is known from the checkpoint (alike/fused.py); `transposed` says
it of others. On processors each takes a matrix; on a GPU as many are in work as fit, and experts are computed together
where the method can do that.
"""

from __future__ import annotations

from abc import abstractmethod
from itertools import groupby
from math import prod
from typing import TYPE_CHECKING, Any, ClassVar, Literal, Protocol, runtime_checkable

import numpy as np

from agentmerge.errors import Problem, RecipeError, Where
from agentmerge.kernels import Kernel, formulas
from agentmerge.methods.arrays import Arrays, cuda
from agentmerge.methods.base import Dilution, MergeMethod, Work, added
from agentmerge.methods.globs import Globs, LayerGlobs, matches
from agentmerge.methods.parts import is_joined, part_by_part, sides_of
from agentmerge.methods.task_arithmetic import weighted_sum
from agentmerge.methods.vectors import Vectors, changed_by

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from agentmerge.methods.base import Precision
    from agentmerge.survey.full.question import Energy
    from agentmerge.survey.overlap import OverlapCounts
    from agentmerge.survey.statistic import Survey
    from agentmerge.tensors import Array, Stack, TensorSpec

LINEAR = (
    *("*proj.weight", "*_proj_*.weight", "*.experts.*.w[123].weight"),
    *("*.experts.gate_up_proj", "*.experts.gate_proj", "*.experts.up_proj", "*.experts.down_proj"),
    *("*.experts.w13_weight", "*.experts.w2_weight", "*.experts.fc[12].weight"),
    *("*.block_sparse_moe.input_linear.weight", "*.block_sparse_moe.output_linear.weight"),
)
"""q_proj, gate_proj, qkv_proj, out_proj ...; kv_a_proj_with_mqa, in_proj_qkvz; the experts of Mixtral. And experts that
are one tensor of a layer: gpt-oss, Llama 4, Qwen3.5, Gemma 4 and most others; Inkling, Aria; Granite and JetMoE."""

NO_DEVICE = Problem(
    "method.device: cuda, but torch is not installed here or finds no CUDA device",
    todo="Install torch with CUDA on a machine with a GPU, or set device: auto.",
    where=Where(path="method.device"),
)

Device = Literal["auto", "cpu", "cuda"]


@runtime_checkable
class TakesMatrices(Protocol):
    """A method that merges some tensors as whole matrices and others not."""

    def takes_matrix(self, tensor: TensorSpec) -> bool:
        """Whether it merges this one so."""


class WholeMatrices(MergeMethod):
    """A method that merges each matrix of a linear layer as a whole; abstract.

    A subclass says what becomes of one matrix (`update`), and what that takes (`matrix_flop`, `matrix_bytes`,
    `precision`).
    """

    in_words: ClassVar[str] = "no multiplier in linear layers"
    """What becomes of an element of a matrix that one agent alone changed."""

    linear: Globs = LINEAR
    """Globs of the matrices that are linear layers; the shape must fit too."""
    transposed: LayerGlobs = ()
    """Globs of those that are stored [in, out], beside the experts of which that is known."""
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

    @property
    def arrays(self) -> Arrays:
        """Where matrices are computed; processors where the settings want a GPU that is not there."""
        return available(self.device) or Arrays()

    @property
    def batched(self) -> bool:
        """Whether `update` takes several matrices at a time, [count, out, in]."""
        return False

    def is_linear(self, tensor: TensorSpec) -> bool:
        """Whether shape and name are those of a linear layer, or of a stack of them."""
        return is_matrix(tensor) and matches(tensor.name, self.linear)

    def is_turned(self, tensor: TensorSpec) -> bool:
        """Whether it is stored [in, out]."""
        return lies_turned(tensor, self.transposed)

    def takes_matrix(self, tensor: TensorSpec) -> bool:
        """See TakesMatrices."""
        return self.is_linear(tensor)

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
                update = update.swapaxes(-1, -2)
            return arrays.added(vectors.base, arrays.put(update, "float32").reshape(-1))

        arrays = available(self.device)
        together = self.batched and arrays is not None and arrays.batches
        return matrix_by_matrix(self, stack, arrays, merged, turned=turned, together=together)

    def work(self, tensor: TensorSpec, agents: int) -> Work:
        """Linear layers matrix by matrix, as many at a time as there are processors and as their memory lets."""
        if not self.is_linear(tensor):
            return Work()
        turned = self.is_turned(tensor)
        rows, columns = sides_of(tensor, turned=turned)
        agents = max(agents, 1)  # where a rule skips all of them
        flop = tensor.elements // (rows * columns) * self.matrix_flop(rows, columns, agents)
        needed = self.matrix_bytes(rows, columns, agents)
        if is_joined(tensor, turned=turned):  # which are copied
            needed += 4 * (agents + 2) * rows * columns
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


def matrix_by_matrix(
    method: MergeMethod,
    stack: Stack,
    arrays: Arrays | None,
    merged: Callable[[Stack, Arrays], Array],
    *,
    turned: bool,
    together: bool = False,
) -> Array:
    """What `merged` makes of each matrix of a stack of one tensor, float32 [n].

    Args:
        method: whose merge it is, for complaints.
        stack: of whole matrices of a tensor [out, in] or [experts, out, in].
        arrays: where it is computed; None where the settings want a GPU that is not there.
        merged: float32 [n] of the stack of one matrix.
        turned: whether matrices are stored [in, out].
        together: whether it takes several matrices that the same agents changed.

    Raises:
        RecipeError: not all of a matrix is there, or no GPU.
    """
    tensor = stack.block.tensor
    elements = prod(tensor.shape[-2:])
    if stack.block.start % elements or stack.base.size % elements:
        raise RecipeError(
            f"method: '{method.name}' must see {tensor.name} whole, but what wraps it gives it elements "
            f"{stack.block.start} to {stack.block.stop}",
            todo="Use it by itself.",
            where=Where(tensor=tensor.name),
        )
    if arrays is None:
        raise RecipeError(NO_DEVICE)
    if is_joined(tensor, turned=turned):
        return part_by_part(
            stack,
            turned,
            lambda part: matrix_by_matrix(method, part, arrays, merged, turned=turned, together=together),
        )
    if stack.base.size == elements:
        with arrays.computing():
            return merged(stack, arrays)
    result, done = np.empty(stack.base.size, np.float32), 0
    pieces = list(stack.pieces(elements))
    for _, alike in groupby(pieces, changed_by) if together else ((None, [piece]) for piece in pieces):
        size = elements * len(list(alike))
        with arrays.computing():
            result[done : done + size] = merged(stack.part(done, done + size), arrays)
        done += size
    return result


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
        return Work("matrix", flop, needed, share=1.0, device=device, problem=NO_DEVICE)
    beside = needed if arrays.device == "cpu" else output
    return Work("matrix", flop, beside, arrays.share(needed), precision, arrays.device)


def available(device: Device) -> Arrays | None:
    """Where matrices are computed; None where the settings want a GPU that is not there."""
    if device == "cpu":
        return Arrays()
    return cuda() or (None if device == "cuda" else Arrays())


def is_matrix(tensor: TensorSpec) -> bool:
    """Whether the shape is that of a matrix, or of a stack of them, with both dimensions above 1.

    What is called a bias and has two is a vector of each expert.
    """
    if tensor.name.endswith("bias"):
        return False
    return len(tensor.shape) in (2, 3) and min(tensor.shape[-2:]) > 1 and tensor.elements > 0


def lies_turned(tensor: TensorSpec, globs: Iterable[str]) -> bool:
    """Whether a tensor is stored [in, out]: as a glob says, or as is known of a stack of experts."""
    return matches(tensor.name, globs) or bool(tensor.experts is not None and tensor.experts.turned)
