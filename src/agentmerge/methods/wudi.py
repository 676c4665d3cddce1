"""WUDI-Merging: the merged task vector that interferes least with what each linear layer learned.

"Whoever Started the Interference Should End It: Guiding Data-Free Model Merging via Task Vectors",
https://arxiv.org/abs/2503.08099. For each matrix of a linear layer, with task vectors tau[t] [out, in]:

    loss(M) = sum over t of ||(M - tau[t]) tau[t]^T||_F^2 / ||tau[t]||_F^2
    merged  = base + M
    M       = what `steps` steps of Adam at `learning_rate` reach from the sum of the tau[t]         solver: adam
            = S + D, S the sum, D minimising loss(S + D) + ridge * trace(A) / in * ||D||_F^2         solver: exact

A = sum of tau[t]^T tau[t] / ||tau[t]||_F^2 is [in, in], so trace(A) / in is its mean eigenvalue: `ridge` says at which
share of it a direction counts as unseen by the agents and stays as the sum has it (0.01).

A weight multiplies the agent's tau before all of this (so the norm cancels it, and it moves the agent's target and its
part of the sum). The threshold plays no part; it is only what the record counts changes by. A zero task vector
contributes nothing. Which tensors are linear layers is said by their shape, [out, in] or a stack [experts, out, in]
of matrices with both dimensions above 1, and by the globs of `linear`; experts stored as [experts, in, out]
(Llama 4, gpt-oss) need their globs in `transposed` too. The paper says nothing of the other tensors (norms, biases,
embeddings, heads, routers); they are averaged, as the authors' later code does.

The two solvers are not the same method. 300 steps of 1e-5 move an element by about 3e-3 at most, so Adam stops on its
way. On the golden set (14 matrices) the loss is 8.34e-4 at the sum, 2.44e-4 with adam and 2.39e-4 with exact; the two
differ by up to 2.04e-3, by 6 to 31 % of the merged vector's norm, where elements of the sum reach 6.8e-3. Either ends
near the average where the agents' inputs overlap (half the sum's norm in gate_proj and up_proj) and beyond the sum
where they hardly do (1.4 times its norm with adam, 1.6 with exact, in down_proj).

Where public codes disagree: some divide by the norm instead of its square, which weighs large task vectors more; the
authors' later version for language models keeps only the leading singular directions. Here: the paper and its code.

Memory of the matrix in work, one at a time whatever the number of workers, beside every worker's block: float32 times
(agents + 7) elements and twice [in, in], or (3 agents + 7) elements in the stacked form; `exact` works in float64. It
runs on a GPU where torch finds CUDA (`device`): the matrices of three 7B agents, 31 PFLOP, take 12 minutes on an H200
with adam and one and a half with exact. Bytes are the same for any worker count, but not on another machine.
"""

from __future__ import annotations

from fnmatch import fnmatchcase
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Literal

import numpy as np
from pydantic import BeforeValidator, Field

from agentmerge.errors import Problem, RecipeError, Where
from agentmerge.methods import interference
from agentmerge.methods.base import Dilution, MergeMethod, Work, added
from agentmerge.methods.task_arithmetic import weighted_sum

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from agentmerge.survey.full.question import Energy
    from agentmerge.survey.overlap import OverlapCounts
    from agentmerge.survey.statistic import Statistic, Survey
    from agentmerge.tensors import Array, Stack, TensorSpec

LINEAR = ("*proj.weight", "*_proj_*.weight", "*.experts.*.w[123].weight")
"""q_proj, gate_proj, qkv_proj, out_proj ...; kv_a_proj_with_mqa, in_proj_qkvz; the experts of Mixtral."""

NO_DEVICE = Problem(
    "method.device: cuda, but torch is not installed here or finds no CUDA device",
    todo="Install torch with CUDA on a machine with a GPU, or set device: auto.",
    where=Where(path="method.device"),
)


def _globs(value: Any) -> Any:
    return tuple(value.split(",")) if isinstance(value, str) else value


Globs = Annotated[tuple[str, ...], BeforeValidator(_globs)]


class Wudi(MergeMethod):
    """WUDI-Merging of linear layers."""

    about: ClassVar[Mapping[str, str]] = {
        "wudi": "WUDI: per linear layer, the task vector that interferes least with every agent's."
    }

    name: Literal["wudi"] = "wudi"
    solver: Literal["adam", "exact"] = "adam"
    """adam: the paper's descent, stopped after `steps`. exact: the same loss solved at once, some 100 times cheaper."""
    steps: int = Field(default=300, ge=1)
    """Of Adam."""
    learning_rate: float = Field(default=1e-5, gt=0)
    """Of Adam: about the most that one step moves an element."""
    ridge: float = Field(default=0.01, gt=0)
    """Of exact: the pull towards the sum, as a share of the mean eigenvalue of A."""
    linear: Globs = LINEAR
    """Globs of the matrices that are linear layers; the shape must fit too."""
    transposed: Globs = ()
    """Globs of those that are stored [in, out]."""
    others: Literal["mean", "sum", "base"] = "mean"
    """What becomes of every other tensor: the mean or the sum of the task vectors, or nothing."""
    device: Literal["auto", "cpu", "cuda"] = "auto"
    """Where matrices are computed; auto is cuda where torch finds it."""

    def ask(self, survey: Survey) -> tuple[Statistic[Any], ...]:
        """The overlap counts: not to merge, but to refuse NaN or an unchanged agent before the long work."""
        return () if survey.knows(self.overlap) else (self.overlap,)

    def merge(self, stack: Stack, survey: Survey) -> Array:
        """The definition, float32 [n]; a linear layer must be whole."""
        if not self.is_linear(stack.block.tensor):
            return added(stack.base, self._plain(stack))
        if stack.base.size != stack.block.tensor.elements:
            raise RecipeError(
                f"method: '{self.name}' must see {stack.block.tensor.name} whole, but what wraps it gives it elements "
                f"{stack.block.start} to {stack.block.stop}",
                todo="Use it by itself.",
                where=Where(tensor=stack.block.tensor.name),
            )
        rows, columns = stack.block.tensor.shape[-2:]
        update = np.empty(stack.base.size, np.float32)
        arrays = self._arrays()
        if arrays is None:
            raise RecipeError(NO_DEVICE)
        with arrays.precisely():
            for piece in stack.pieces(rows * columns):  # matrix by matrix
                place = slice(piece.block.start, piece.block.stop)
                update[place] = self._merged_vector(piece, arrays)
            return added(stack.base, update)

    def work(self, tensor: TensorSpec, agents: int) -> Work:
        """Linear layers whole and one at a time: a matrix takes all processors, and much memory, by itself.

        It also keeps the bytes the same for any worker count: a BLAS splits its sums by the threads that it has.
        """
        if not self.is_linear(tensor):
            return Work()
        rows, columns = self._sides(tensor)
        flop = tensor.elements // (rows * columns) * min(self._flop(rows, columns, agents).values())
        arrays, needed = self._arrays(), self._solver_bytes(rows, columns, agents)
        if arrays is None:
            return Work("tensor", flop, needed, alone=True, device=self.device, problem=NO_DEVICE)
        return Work("tensor", flop, needed, alone=True, device=arrays.device)

    def dilution(self, names: Sequence[str], counts: OverlapCounts, energy: Energy) -> Dilution:
        """What an element gets depends on its whole matrix."""
        return Dilution.unknown(len(names), "no multiplier in linear layers; 1 / N elsewhere")

    def is_linear(self, tensor: TensorSpec) -> bool:
        """Whether shape and name are those of a linear layer, or of a stack of them."""
        fits = len(tensor.shape) in (2, 3) and min(tensor.shape[-2:]) > 1 and tensor.elements > 0
        return fits and _matches(tensor.name, self.linear)

    def correction(self, taus: Sequence[Array], arrays: interference.Arrays) -> Array:
        """D, what the solver adds to the sum of the task vectors: float32 [out, in], as each of `taus`."""
        rows, columns = taus[0].shape
        form = interference.cheaper(self._flop(rows, columns, len(taus)))
        if self.solver == "exact":
            return interference.solve(taus, ridge=self.ridge, form=form, arrays=arrays)
        return interference.descend(taus, steps=self.steps, rate=self.learning_rate, form=form, arrays=arrays)

    def _merged_vector(self, stack: Stack, arrays: interference.Arrays) -> Array:
        """M of one matrix, flat; with fewer than two task vectors nothing interferes, and the sum is the best."""
        shape, turned = stack.block.tensor.shape[-2:], self._is_turned(stack.block.tensor)
        weighted = stack.task_vectors() * stack.weight()[:, None]
        total: Array = weighted.sum(axis=0)
        changed = [tau.reshape(shape) for tau in weighted if tau.any()]
        if len(changed) < 2:
            return total
        correction = self.correction([tau.T if turned else tau for tau in changed], arrays)
        total += (correction.T if turned else correction).reshape(-1)
        return total

    def _plain(self, stack: Stack) -> Array:
        """The update of what is no linear layer, float32 [n]."""
        if self.others == "base":
            return np.zeros(stack.base.size, np.float32)
        return weighted_sum(stack) / np.float32(1 if self.others == "sum" else len(stack.agents))

    def _sides(self, tensor: TensorSpec) -> tuple[int, int]:
        """Out and in of a linear layer."""
        rows, columns = tensor.shape[-2:]
        return (columns, rows) if self._is_turned(tensor) else (rows, columns)

    def _is_turned(self, tensor: TensorSpec) -> bool:
        return _matches(tensor.name, self.transposed)

    def _flop(self, rows: int, columns: int, agents: int) -> dict[interference.Form, float]:
        if self.solver == "exact":
            return interference.solution_flop(rows, columns, agents)
        return interference.descent_flop(rows, columns, agents, self.steps)

    def _solver_bytes(self, rows: int, columns: int, agents: int) -> int:
        """For one matrix: the task vectors, what the solver keeps beside them, and the system."""
        stacked = interference.cheaper(self._flop(rows, columns, agents)) == "stacked"
        if self.solver == "adam":
            return 4 * (rows * columns * (agents * (1 + 2 * stacked) + 7) + 2 * columns**2 * (not stacked))
        side = agents * rows if stacked else columns
        return 4 * agents * rows * columns + 8 * (rows * columns * (agents * (1 + 2 * stacked) + 5) + 3 * side**2)

    def _arrays(self) -> interference.Arrays | None:
        """Where matrices are computed; None where the settings want a GPU that is not there."""
        if self.device == "cpu":
            return interference.Arrays()
        return interference.cuda() or (None if self.device == "cuda" else interference.Arrays())


def _matches(name: str, globs: tuple[str, ...]) -> bool:
    return any(fnmatchcase(name, glob) for glob in globs)
