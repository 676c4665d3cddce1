"""WUDI-Merging: the merged task vector that interferes least with what each linear layer learned.

"Whoever Started the Interference Should End It: Guiding Data-Free Model Merging via Task Vectors",
https://arxiv.org/abs/2503.08099. For each matrix of a linear layer, with task vectors tau[t] [out, in]:

    loss(M) = sum over t of ||(M - tau[t]) tau[t]^T||_F^2 / ||tau[t]||_F^2
    merged  = base + M
    M       = what `steps` steps of Adam at `learning_rate` reach from the sum of the tau[t]         solver: adam
            = S + D, S the sum, D minimising loss(S + D) + ridge * trace(A) / in * ||D||_F^2         solver: exact

A = sum of tau[t]^T tau[t] / ||tau[t]||_F^2 is [in, in], so trace(A) / in is its mean eigenvalue: `ridge` says at which
share of it a direction counts as unseen by the agents and stays as the sum has it (0.01).

Where the recipe has `keep`, Gram matrices G of the base's inputs on prompts of what it can do (docs/grams.md), the base
takes part as one more agent, whose task vector is 0 and whose inputs are measured:

    loss'(M) = loss(M) + keep * trace(M G M^T) / trace(G)

An agent's own part of A has trace 1 too, so `keep` 1 counts the base as much as an agent, 0.1 as a tenth of one. It
keeps the merge away from what the base's layers are given on those prompts, which protects skills that no agent was
trained on: see docs/evidence.md. A layer without G is merged without it.

A weight multiplies the agent's tau before all of this (so the norm cancels it, and it moves the agent's target and its
part of the sum). The threshold plays no part; it is only what the record counts changes by. A zero task vector
contributes nothing. Where `retention` is a number, merged - base is then multiplied by the factor that brings the
agents' mean retention to it, over all merged elements (methods/calibrate.py). Which tensors are linear layers is said
by their shape, [out, in] or a stack [experts, out, in] of matrices with both dimensions above 1, and by the globs of
`linear`; gate and up of experts that are stored as one matrix are two. The paper says nothing of the other tensors
(norms, biases, embeddings, heads, routers); they are averaged, as the authors' later code does.

The two solvers are not the same method. 300 steps of 1e-5 move an element by about 3e-3 at most, so Adam stops on its
way. On the golden set (14 matrices) the loss is 8.34e-4 at the sum, 2.44e-4 with adam and 2.39e-4 with exact; the two
differ by up to 2.04e-3, by 6 to 31 % of the merged vector's norm, where elements of the sum reach 6.8e-3. Either ends
near the average where the agents' inputs overlap (half the sum's norm in gate_proj and up_proj) and beyond the sum
where they hardly do (1.4 times its norm with adam, 1.6 with exact, in down_proj).

Where public codes disagree: some divide by the norm instead of its square, which weighs large task vectors more; the
authors' later version for language models keeps only the leading singular directions. Here: the paper and its code.

Memory of a matrix in work, beside its block: with adam float32 times (agents + 7) elements and twice [in, in], or
(3 agents + 7) elements in the stacked form; with exact 12 bytes an element and three systems [in, in] in float64, or 4
bytes and three systems of agents * out and its right side, whatever the number of agents: task vectors are formed
panel by panel. With `keep` it is always the form of [in, in], and two more of them. Each processor has one in work, or
fewer where their memory would be more than a quarter of the machine's; on a GPU (`device`) as many as fit. The matrices
of three 7B agents take 31 PFLOP with adam and 0.3 with exact. Bytes are the same for any worker count, but not on
another machine.
"""

from __future__ import annotations

from functools import lru_cache
from typing import TYPE_CHECKING, Any, ClassVar, Literal, Self

from pydantic import Field

from agentmerge.methods import interference
from agentmerge.methods.calibrate import Calibrate
from agentmerge.methods.grams import gram_shape, keeps, kept_gram, with_keep
from agentmerge.methods.layers import WholeMatrices

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from agentmerge.kernels import Kernel
    from agentmerge.methods.arrays import Arrays
    from agentmerge.methods.base import Beside, Context, Precision, Told, Work
    from agentmerge.methods.vectors import Vectors
    from agentmerge.survey.statistic import Foldable, Survey
    from agentmerge.tensors import Array, Stack, TensorSpec


class Wudi(WholeMatrices):
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
    retention: float | None = Field(default=None, gt=0)
    """Mean over the agents of <merged - base, tau> / <tau, tau> that the merge is scaled to; null scales nothing."""
    keep: float | None = Field(default=None, ge=0)
    """What the base counts as beside an agent where the recipe has `keep`; null is 0.1 there."""

    def bind(self, context: Context) -> Self:
        """With what the base counts as."""
        return self.model_copy(update={"keep": keeps(self.keep, context, self.name)})

    @property
    def reads(self) -> tuple[Beside, ...]:
        """The base's Gram matrices where the recipe has them."""
        return () if self.keep is None else ("keep",)

    def ask(self, survey: Survey) -> tuple[Foldable[Any], ...]:
        """What scales it; before Adam's hours the overlap counts, so that what is wrong is told first."""
        if self.retention is not None:
            return _scaled(self).ask(survey)
        return () if self.solver == "exact" or survey.knows(self.overlap) else (self.overlap,)

    def merge(self, stack: Stack, survey: Survey) -> Array:
        """The definition, float32 [n]; a linear layer must be whole."""
        if self.retention is not None:
            return _scaled(self).merge(stack, survey)
        return super().merge(stack, survey)

    def work(self, tensor: TensorSpec, agents: int) -> Work:
        """That of a matrix; and what is kept of it to be scaled."""
        if self.retention is not None:
            return _scaled(self).work(tensor, agents)
        work = super().work(tensor, agents)
        if not self.is_linear(tensor):
            return work
        return with_keep(work, self.keep, gram_shape(tensor, turned=self.is_turned(tensor)))

    @property
    def loops(self) -> tuple[str, ...]:
        """See MergeMethod.loops."""
        return super().loops if self.retention is None else _scaled(self).loops

    def kernel(self, stack: Stack, survey: Survey) -> Iterable[Kernel] | None:
        """Of what is no linear layer; and what scales."""
        if self.retention is not None:
            return _scaled(self).kernel(stack, survey)
        return super().kernel(stack, survey)

    def told(self, survey: Survey, names: tuple[str, ...]) -> Told:
        """The factor, and the retention before, after and as stored, where it is asked for."""
        return super().told(survey, names) if self.retention is None else _scaled(self).told(survey, names)

    def update(self, vectors: Vectors, arrays: Arrays) -> Any:
        """M of one matrix; a single task vector that nothing interferes with is the best."""
        kept = self._kept(vectors, arrays)
        if len(vectors) < 2 and (kept is None or not len(vectors)):
            return vectors[0] if len(vectors) else None
        return self.merged_vector(vectors, arrays, kept)

    def merged_vector(self, vectors: interference.TaskVectors, arrays: Arrays, kept: Any = None) -> Any:
        """M of task vectors [out, in], none of them zero: [out, in], an array of that library.

        Args:
            vectors: two or more; one where anything is kept.
            arrays: the library.
            kept: keep * G / trace(G), float64 [..., in, in].
        """
        form = self._form(*vectors.shape, len(vectors)) if kept is None else "input"
        if self.solver == "exact":
            return interference.solve(vectors, ridge=self.ridge, form=form, arrays=arrays, kept=kept)
        taus = [vectors.part(i) for i in range(len(vectors))]
        total = sum(taus[1:], start=taus[0])
        return total + interference.descend(
            taus, steps=self.steps, rate=self.learning_rate, form=form, arrays=arrays, kept=kept
        )

    def _kept(self, vectors: Vectors, arrays: Arrays) -> Any:
        """Keep * G / trace(G), float64 [..., in, in], 0 where the base has no input; None of what was not measured."""
        gram = kept_gram(vectors) if self.keep else None
        if gram is None:
            return None
        wide = arrays.put(gram, "float64")
        trace = interference.trace(wide)
        share = wide / (trace + (trace == 0))
        share *= self.keep
        return share

    @property
    def batched(self) -> bool:
        """Of the exact solver."""
        return self.solver == "exact"

    @property
    def precision(self) -> Precision:
        """That of the solver."""
        return "float64" if self.solver == "exact" else "float32"

    def matrix_flop(self, rows: int, columns: int, agents: int) -> float:
        """In the cheaper form."""
        return self._flop(rows, columns, agents)[self._form(rows, columns, agents)]

    def matrix_bytes(self, rows: int, columns: int, agents: int) -> int:
        """The task vectors or their panels, what the solver keeps beside them, and the system."""
        form, beside = self._form(rows, columns, agents), 16 * columns**2 if self.keep else 0
        if self.solver == "exact":
            return beside + interference.solution_bytes(rows, columns, agents, form, self.arrays)
        stacked = form == "stacked"
        return beside + 4 * (rows * columns * (agents * (1 + 2 * stacked) + 7) + 2 * columns**2 * (not stacked))

    def _form(self, rows: int, columns: int, agents: int) -> interference.Form:
        """The cheaper one; what is kept is of the inputs."""
        return "input" if self.keep else interference.cheaper(self._flop(rows, columns, agents))

    def _flop(self, rows: int, columns: int, agents: int) -> dict[interference.Form, float]:
        if self.solver == "exact":
            return interference.solution_flop(rows, columns, agents)
        return interference.descent_flop(rows, columns, agents, self.steps)


@lru_cache(maxsize=64)
def _scaled(method: Wudi) -> Calibrate:
    """A method with a retention as the wrapper that scales the same method without one."""
    plain = method.model_copy(update={"name": "wudi", "retention": None})
    return Calibrate(retention=method.retention, then=plain)
