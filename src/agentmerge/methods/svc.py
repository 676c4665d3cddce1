"""SVC: any merge, each of its singular directions scaled to the agents' retention in it.

"When Shared Knowledge Hurts: Spectral Over-Accumulation in Model Merging", https://arxiv.org/abs/2602.05536. Singular
Value Calibration is a wrapper. Per matrix, D [out, in] the update that the inner method gives it:

    D = U S V^T;   x[r, t] = u[r]^T tau[t];   p[r, t] = <s[r] v[r], x[r, t]> / max(norm(x[r, t])^2, 1e-12)
    gamma[r] = T / sum over t of max(alpha, p[r, t])
    merged   = base + U diag(gamma S) V^T;   every other tensor: as the inner method leaves it

p[r, t] is the retention of agent t (methods/calibrate.py) in direction r, so a direction in which every agent keeps p
is multiplied by 1 / p: it is `calibrate` per direction. alpha bounds what that can enlarge: at 1 it only shrinks, at
0.1 it enlarges up to ten times. An agent that changed nothing counts as alpha. Directions are those of the left side
alone: the transposed matrix gives another result (`transposed`).

D is the inner method's update itself, not merged minus base: from bfloat16 weights the public code's result is 35 %
off. For that the inner method merges the task vectors onto a base of zeros. A direction of which float64 can't tell
whether it is there (methods/spectra.py) is left as it is. Equal singular values leave a result undefined, so flat inner
methods, `iso_c` and `iso_cts`, are refused, for which public settings exist; other ties are told in the record.

Where public codes disagree: FusionBench has alpha 0.1 around Task Arithmetic (scale 0.3), TIES, DARE and the mean, 1
around TSV-M and WUDI, which `alpha: null` follows. Its TIES is ours with `normalize: false`. Embeddings and the head
are calibrated, too.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Literal

import numpy as np
from pydantic import BeforeValidator, Field, field_validator

from agentmerge.methods import spectra
from agentmerge.methods.arrays import Arrays
from agentmerge.methods.base import Dilution, Work
from agentmerge.methods.globs import Globs, Naming, globs_of
from agentmerge.methods.kernel import parts_of, sees_whole
from agentmerge.methods.layers import Device, WholeMatrices, lies_turned, matrix_by_matrix, matrix_work
from agentmerge.methods.layers import available as arrays_on
from agentmerge.methods.parts import PARTS, is_joined, sides_of
from agentmerge.methods.spectral import ALL, place_of, takes, told_of
from agentmerge.methods.wrapper import Wrapper, chain_of
from agentmerge.survey.reported import Reported, report
from agentmerge.survey.retention import StoredRetention

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from agentmerge.kernels import Kernel
    from agentmerge.methods.base import MergeMethod, Told
    from agentmerge.survey.full.question import Energy
    from agentmerge.survey.overlap import OverlapCounts
    from agentmerge.survey.statistic import Foldable, Survey
    from agentmerge.tensors import Array, Stack, TensorSpec

FLAT = ("iso_c", "iso_cts")
"""Methods whose singular values are all equal."""
UPDATE = "update"
"""What the inner method's update is called beside the task vectors."""
LEAST = 1e-12
"""What divides a retention at least."""
TIED = 1e-12
"""Squares of singular values that are closer, as a share of the largest, can't be told apart."""
MEANINGS = {
    "tied": (
        "{} with equal singular values, whose directions are arbitrary",
        "their calibration is, too: another inner method, or less sparse agents.",
    )
}


class Svc(Wrapper):
    """Another method's merge, each singular direction of it scaled."""

    about: ClassVar[Mapping[str, str]] = {
        "svc": "SVC: another method's merge, each singular direction scaled so that agents keep their changes."
    }

    name: Literal["svc"] = "svc"
    alpha: float | None = Field(default=None, gt=0)
    """Least retention that counts; null is 0.1, and 1 around methods of whole matrices."""
    linear: Globs = ALL
    """Globs of the tensors that are calibrated; the shape must fit too. In a stack of them, * is *expert*."""
    transposed: Annotated[tuple[str, ...], BeforeValidator(globs_of), Naming("is_calibrated")] = ()
    """Globs of those that are stored [in, out], beside the experts of which that is known."""
    device: Device = "auto"
    """Where matrices are computed; auto is cuda where torch finds it."""

    @field_validator("then")
    @classmethod
    def _curved(cls, then: MergeMethod) -> MergeMethod:
        if any(one.name in FLAT for one in chain_of(then)):
            raise ValueError(
                "all singular values of a merge by iso_c or iso_cts are equal, so that their directions, and what svc "
                "makes of them, are arbitrary"
            )
        return then

    @property
    def least(self) -> float:
        """Alpha of the formula."""
        whole = isinstance(chain_of(self.then)[-1], WholeMatrices)
        return self.alpha if self.alpha is not None else 1.0 if whole else 0.1

    def is_calibrated(self, tensor: TensorSpec) -> bool:
        """Whether a tensor is a matrix, or a stack of them, of those that are named."""
        return takes(tensor, self.linear)

    def takes_matrix(self, tensor: TensorSpec) -> bool:
        """See TakesMatrices."""
        return self.is_calibrated(tensor)

    def ask(self, survey: Survey) -> tuple[Foldable[Any], ...]:
        """What the inner method asks of the inputs, and what is found out while merging.

        What it asks of the stored result is left out: that is not its own.
        """
        asked = tuple(q for q in super().ask(survey) if q not in (StoredRetention(), Reported()))
        return (*asked, Reported())

    def work(self, tensor: TensorSpec, agents: int) -> Work:
        """The inner method's, and the decomposition."""
        inner = super().work(tensor, agents)
        if not self.is_calibrated(tensor):
            return replace(inner, draft=f"{self.name} {inner.draft}") if inner.draft else inner
        turned = lies_turned(tensor, self.transposed)
        rows, columns = sides_of(tensor, turned=turned)
        flop = tensor.elements // (rows * columns) * _flop(rows, columns, agents)
        vectors, output = 4 * (agents + 2) * tensor.elements, 4 * tensor.elements
        own = matrix_work(self.device, flop, _bytes(rows, columns), "float64", output)
        problem = inner.problem or own.problem
        copied = vectors // len(PARTS) if is_joined(tensor, turned=turned) else 0
        beside = vectors + copied + max(inner.bytes, own.bytes)
        share = max(inner.share, own.share, Arrays().share(beside))
        again = 2 if inner.draft else inner.times  # what a fold kept is of other stacks
        flop = own.flop + again * inner.flop
        reach = inner.reach if inner.reach == "tensor" else own.reach
        own = replace(own, reach=reach, gram=inner.gram, keep=inner.keep)
        return replace(own, flop=flop, bytes=beside, share=share, problem=problem)

    def _inner(self, survey: Survey) -> Survey:
        """What is kept of the inner method's merges is not of the stacks that it sees here."""
        return survey.derived(self, lambda: survey.seen_through(lambda question: question, f"{self.name} "))

    def merge(self, stack: Stack, survey: Survey) -> Array:
        """The definition, float32 [n]; a matrix must be whole."""
        if not self.is_calibrated(stack.block.tensor):
            return super().merge(stack, survey)
        turned = lies_turned(stack.block.tensor, self.transposed)
        tau = stack.task_vectors()
        inner = replace(stack, base=np.zeros(stack.base.size, np.float32), tau=tau, stored=())
        both = replace(stack, tau=tau, extra={UPDATE: (self._update(inner, survey),)})

        def calibrated(piece: Stack, arrays: Arrays) -> Array:
            vectors = [_matrix(row, piece, arrays, turned=turned) for row in piece.task_vectors()]
            update = _matrix(piece.extra[UPDATE][0], piece, arrays, turned=turned)
            found = self._calibrated(update, vectors, piece, arrays)
            found = arrays.put(found.T if turned else found, "float32").reshape(-1)
            return arrays.added(arrays.wide(arrays.sent(piece.base)), found)

        return matrix_by_matrix(self, both, arrays_on(self.device), calibrated, turned=turned)

    def _update(self, stack: Stack, survey: Survey) -> Array:
        """The inner method's merge of task vectors onto zeros, float32 [n]."""
        if sees_whole(self.then, stack):
            return super().merge(stack, survey)
        return np.concatenate([super(Svc, self).merge(piece, survey) for piece in parts_of(self.then, stack)])

    def _calibrated(self, update: Any, taus: Sequence[Any], stack: Stack, arrays: Arrays) -> Any:
        """U diag(gamma S) V^T of D, float64 [out, in], of task vectors in float32."""
        xp, weights = arrays.xp, stack.weight().tolist()
        wide = arrays.put(update, "float64")
        side = min(wide.shape)
        of = spectra.eigen(spectra.gram(wide, arrays), arrays)
        _report_ties(of, stack)
        left, values, right = spectra.leading(wide, side, arrays, of)
        kept = xp.zeros_like(values)
        for tau in taus:
            along = arrays.put(tau, "float64").T @ left
            energy = (along * along).sum(0)
            retention = values * (along * right).sum(0) / xp.clip(energy, LEAST, None)
            kept += xp.clip(retention, self.least, None)
        gamma = xp.where(values > 0, len(weights) / kept, xp.ones_like(kept))
        vectors = of.vectors
        return spectra.times_side(wide, (vectors * gamma) @ vectors.T)

    def kernel(self, stack: Stack, survey: Survey) -> Iterable[Kernel] | None:
        """The inner method's, of what is not calibrated."""
        return None if self.is_calibrated(stack.block.tensor) else super().kernel(stack, survey)

    def told(self, survey: Survey, names: tuple[str, ...]) -> Told:
        """What the inner method tells of the inputs, without a scale: directions have their own; ties."""
        inner = self.then.told(survey.seen_through(_apart), names)
        if not survey.knows(Reported()):
            return replace(inner, scales=None)
        facts = survey.total(Reported())
        own = told_of(self.name, {k: v for k, v in facts.items() if k in MEANINGS}, MEANINGS)
        meanings = getattr(chain_of(self.then)[-1], "meanings", {})
        rest = told_of(self.then.name, {k: v for k, v in facts.items() if k not in MEANINGS}, meanings)
        learned = {**inner.learned, **rest.learned, **own.learned}
        return replace(inner, scales=None, learned=learned, notes=(*own.notes, *rest.notes, *inner.notes))

    def dilution(self, names: Sequence[str], counts: OverlapCounts, energy: Energy) -> Dilution:
        """What an element gets depends on its whole matrix."""
        return Dilution.unknown(
            len(names), f"no multiplier in a matrix, but one by direction; {self.then.name} elsewhere"
        )


@dataclass(frozen=True)
class _InnerStored(StoredRetention):
    """What would be stored of the inner merge, which nobody asks."""


@dataclass(frozen=True)
class _InnerReported(Reported):
    """What the inner method would hear of itself: its facts are told here."""


def _apart(question: Foldable[Any]) -> Foldable[Any]:
    if question == StoredRetention():
        return _InnerStored()
    return _InnerReported() if question == Reported() else question


def _matrix(flat: Array, stack: Stack, arrays: Arrays, *, turned: bool) -> Any:
    """Of flat numbers, [out, in], where it is computed."""
    matrix = arrays.put(flat, "float32").reshape(stack.block.tensor.shape[-2:])
    return matrix.T if turned else matrix


def _report_ties(of: spectra.Eigen, stack: Stack) -> None:
    values = of.values[: of.rank]
    if of.rank > 1 and bool((values[:-1] - values[1:] <= TIED * values[0]).any()):
        report("tied", place_of(stack), int((values[:-1] - values[1:] <= TIED * values[0]).sum()))


def _flop(rows: int, columns: int, agents: int) -> float:
    """Gram, eigenvectors, the other side, every agent along the left side, and what puts together."""
    side = min(rows, columns)
    return spectra.eigen_flop(rows, columns) + 2.0 * rows * columns * side * (agents + 2) + 2.0 * side**3


def _bytes(rows: int, columns: int) -> int:
    """D, a task vector, both sides and what lies along one of them, in float64; what eigenvectors take."""
    side = min(rows, columns)
    return 8 * (2 * rows * columns + side * (rows + 3 * columns)) + spectra.eigen_bytes(rows, columns)
