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
contributes nothing. Where `retention` is a number, merged - base is then multiplied by the factor that brings the
agents' mean retention to it, over all merged elements (methods/calibrate.py). Which tensors are linear layers is said
by their shape, [out, in] or a stack [experts, out, in] of matrices with both dimensions above 1, and by the globs of
`linear`; experts stored as [experts, in, out] (Llama 4, gpt-oss) need their globs in `transposed` too. The paper says
nothing of the other tensors (norms, biases, embeddings, heads, routers); they are averaged, as the authors' later code
does.

The two solvers are not the same method. 300 steps of 1e-5 move an element by about 3e-3 at most, so Adam stops on its
way. On the golden set (14 matrices) the loss is 8.34e-4 at the sum, 2.44e-4 with adam and 2.39e-4 with exact; the two
differ by up to 2.04e-3, by 6 to 31 % of the merged vector's norm, where elements of the sum reach 6.8e-3. Either ends
near the average where the agents' inputs overlap (half the sum's norm in gate_proj and up_proj) and beyond the sum
where they hardly do (1.4 times its norm with adam, 1.6 with exact, in down_proj).

Where public codes disagree: some divide by the norm instead of its square, which weighs large task vectors more; the
authors' later version for language models keeps only the leading singular directions. Here: the paper and its code.

Memory of the matrix in work, one at a time on processors whatever the number of workers, beside every worker's block:
with adam float32 times (agents + 7) elements and twice [in, in], or (3 agents + 7) elements in the stacked form; with
exact float64 times 7 elements, or 2 agents + 4 in the stacked form, and three systems. On a GPU (`device`) it lies
there, and as many matrices are in work as fit. The matrices of three 7B agents take 31 PFLOP with adam and 0.3 with
exact. Bytes are the same for any worker count, but not on another machine.
"""

from __future__ import annotations

from collections.abc import Sequence
from fnmatch import fnmatchcase
from functools import lru_cache
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Literal

import numpy as np
from pydantic import BeforeValidator, Field

from agentmerge.errors import Problem, RecipeError, Where
from agentmerge.kernels import Kernel, formulas
from agentmerge.methods import interference
from agentmerge.methods.arrays import Arrays, cuda
from agentmerge.methods.base import Dilution, MergeMethod, Told, Work, added
from agentmerge.methods.calibrate import Calibrate
from agentmerge.methods.task_arithmetic import weighted_sum
from agentmerge.tensors import as_float32

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from agentmerge.methods.base import Precision
    from agentmerge.survey.full.question import Energy
    from agentmerge.survey.overlap import OverlapCounts
    from agentmerge.survey.statistic import Foldable, Survey
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

    presets: ClassVar[Mapping[str, Mapping[str, Any]]] = {"wudi_auto": {"solver": "exact", "retention": 1.0}}
    about: ClassVar[Mapping[str, str]] = {
        "wudi": "WUDI: per linear layer, the task vector that interferes least with every agent's.",
        "wudi_auto": "WUDI solved exactly, then scaled so that the agents keep their changes: the recommended one.",
    }
    aliases: ClassVar[Mapping[str, str]] = {"wudi+auto": "wudi_auto"}

    name: Literal["wudi", "wudi_auto"] = "wudi"
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
    retention: float | None = Field(default=None, gt=0)
    """Mean over the agents of <merged - base, tau> / <tau, tau> that the merge is scaled to; null scales nothing."""
    device: Literal["auto", "cpu", "cuda"] = "auto"
    """Where matrices are computed; auto is cuda where torch finds it."""

    def ask(self, survey: Survey) -> tuple[Foldable[Any], ...]:
        """What scales it; before Adam's hours the overlap counts, so that what is wrong is told first."""
        if self.retention is not None:
            return _scaled(self).ask(survey)
        return () if self.solver == "exact" or survey.knows(self.overlap) else (self.overlap,)

    def merge(self, stack: Stack, survey: Survey) -> Array:
        """The definition, float32 [n]; a linear layer must be whole."""
        if self.retention is not None:
            return _scaled(self).merge(stack, survey)
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
        arrays = self._arrays()
        if arrays is None:
            raise RecipeError(NO_DEVICE)
        if stack.base.size == rows * columns:
            with arrays.computing():
                return self._merged(stack, arrays)
        merged = np.empty(stack.base.size, np.float32)
        for piece in stack.pieces(rows * columns):  # matrix by matrix
            with arrays.computing():
                merged[piece.block.start : piece.block.stop] = self._merged(piece, arrays)
        return merged

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
            return Work("tensor", flop, needed, share=1.0, device=self.device, problem=NO_DEVICE)
        precision: Precision = "float64" if self.solver == "exact" else "float32"
        beside = needed if arrays.device == "cpu" else 4 * rows * columns
        return Work("tensor", flop, beside, arrays.share(needed), precision, arrays.device)

    @property
    def loops(self) -> tuple[str, ...]:
        """See MergeMethod.loops."""
        return ("given", "linear") if self.retention is None else _scaled(self).loops

    def kernel(self, stack: Stack, survey: Survey) -> Iterable[Kernel] | None:
        """Of what is no linear layer; and what scales."""
        if self.retention is not None:
            return _scaled(self).kernel(stack, survey)
        if self.is_linear(stack.block.tensor):
            return None
        scale, divisor = float(self.others != "base"), float(len(stack.agents) if self.others == "mean" else 1)
        return (Kernel("linear", formulas.Linear(self.overlap.threshold, stack.weight(), scale, divisor), stack),)

    def told(self, survey: Survey, names: tuple[str, ...]) -> Told:
        """The factor, and the retention before, after and as stored, where it is asked for."""
        return super().told(survey, names) if self.retention is None else _scaled(self).told(survey, names)

    def dilution(self, names: Sequence[str], counts: OverlapCounts, energy: Energy) -> Dilution:
        """What an element gets depends on its whole matrix."""
        return Dilution.unknown(len(names), "no multiplier in linear layers; 1 / N elsewhere")

    def is_linear(self, tensor: TensorSpec) -> bool:
        """Whether shape and name are those of a linear layer, or of a stack of them."""
        fits = len(tensor.shape) in (2, 3) and min(tensor.shape[-2:]) > 1 and tensor.elements > 0
        return fits and _matches(tensor.name, self.linear)

    def merged_vector(self, taus: Sequence[Any], arrays: Arrays) -> Any:
        """M of task vectors [out, in], two or more and none of them zero: [out, in], an array of that library."""
        rows, columns = taus[0].shape
        form = interference.cheaper(self._flop(rows, columns, len(taus)))
        if self.solver == "exact":
            return interference.solve(taus, ridge=self.ridge, form=form, arrays=arrays)
        total = sum(taus[1:], start=taus[0])
        return total + interference.descend(taus, steps=self.steps, rate=self.learning_rate, form=form, arrays=arrays)

    def _merged(self, stack: Stack, arrays: Arrays) -> Array:
        """One matrix, flat; with fewer than two task vectors nothing interferes, and the sum is the best."""
        vectors = _Vectors(stack, arrays, turned=self._is_turned(stack.block.tensor))
        if len(vectors) < 2:
            update = vectors[0] if len(vectors) else arrays.put(np.zeros(stack.base.size, np.float32), "float32")
        else:
            update = arrays.put(self.merged_vector(vectors, arrays), "float32")
        if vectors.turned and len(vectors):
            update = update.T
        return arrays.added(vectors.base, update.reshape(-1))

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
        return 8 * (rows * columns * (2 * agents + 4 if stacked else 7) + 3 * side**2)

    def _arrays(self) -> Arrays | None:
        """Where matrices are computed; None where the settings want a GPU that is not there."""
        if self.device == "cpu":
            return Arrays()
        return cuda() or (None if self.device == "cuda" else Arrays())


class _Vectors(Sequence[Any]):
    """The task vectors of one matrix that are not zero, [out, in] each, formed when they are asked for."""

    def __init__(self, stack: Stack, arrays: Arrays, *, turned: bool) -> None:
        self._stack, self._arrays, self.turned = stack, arrays, turned
        self.base = arrays.base(stack)
        self._changed = [t for t in range(len(stack.agents)) if stack.weight()[t] != 0 and _moved(stack, t)]

    def __len__(self) -> int:
        return len(self._changed)

    def __getitem__(self, index: Any) -> Any:
        if isinstance(index, slice):
            return [self[i] for i in range(*index.indices(len(self)))]
        tau = self._arrays.task_vector(self._stack, self.base, self._changed[index])
        tau = tau.reshape(self._stack.block.tensor.shape[-2:])
        return tau.T if self.turned else tau


def _moved(stack: Stack, t: int) -> bool:
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


@lru_cache(maxsize=64)
def _scaled(method: Wudi) -> Calibrate:
    """A method with a retention as the wrapper that scales the same method without one."""
    plain = method.model_copy(update={"name": "wudi", "retention": None})
    return Calibrate(retention=method.retention, then=plain)


def _matches(name: str, globs: tuple[str, ...]) -> bool:
    return any(fnmatchcase(name, glob) for glob in globs)
