"""What the methods of singular vectors share: which matrices they take by the public codes, and what they tell."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, ClassVar

from agentmerge.errors import Note
from agentmerge.methods.base import Told
from agentmerge.methods.globs import Globs, SmallGlobs, matches
from agentmerge.methods.layers import WholeMatrices, is_matrix
from agentmerge.survey.reported import Reported, report

if TYPE_CHECKING:
    from collections.abc import Mapping

    from agentmerge.methods.vectors import Vectors
    from agentmerge.survey.reported import Facts
    from agentmerge.survey.statistic import Foldable, Survey
    from agentmerge.tensors import Stack, TensorSpec

ALL = ("*",)
EXPERTS = "*expert*"
"""What `*` stands for in a stack of matrices: a convolution has three dimensions, too."""
LISTED = 24
"""Matrices that a record names of each kind of fact."""


class Spectral(WholeMatrices):
    """A method that takes any matrix unless its name is excluded; abstract."""

    reports: ClassVar[bool] = True
    meanings: ClassVar[Mapping[str, tuple[str, str]]] = {}
    """Of facts that are worth a warning: what is told of N matrices, and what to do about it."""

    linear: Globs = ALL
    """Globs of the tensors that are merged as matrices; the shape must fit too. In a stack of them, * is *expert*."""
    excluded: SmallGlobs = ("*text_projection*",)
    """Globs, in small letters, of matrices that are merged as the other tensors are."""

    def is_linear(self, tensor: TensorSpec) -> bool:
        """Whether shape and name are those of a matrix that is merged as one, or of a stack of them."""
        return takes(tensor, self.linear) and not matches(tensor.name.lower(), self.excluded)

    def ask(self, survey: Survey) -> tuple[Foldable[Any], ...]:
        """Nothing before it merges; what it finds out meanwhile."""
        return (Reported(),)

    def told(self, survey: Survey, names: tuple[str, ...]) -> Told:
        """What it found out about matrices, and warnings of it."""
        return told_of(self.name, survey.total(Reported()), self.meanings) if survey.knows(Reported()) else Told()


def takes(tensor: TensorSpec, globs: Globs) -> bool:
    """Whether a tensor is a matrix, or a stack of them, that one of the globs names."""
    stacked = tuple(EXPERTS if glob == "*" else glob for glob in globs)
    if len(tensor.shape) == 2 or tensor.experts is not None:
        stacked = globs
    return is_matrix(tensor) and matches(tensor.name, stacked)


def place_of(stack: Stack) -> str:
    """The name of the matrix that a stack is: its tensor's, and of experts [its number]."""
    tensor = stack.block.tensor
    if len(tensor.shape) == 2:
        return tensor.name
    return f"{label_of(tensor)}[{stack.block.start // stack.base.size}]"


def label_of(tensor: TensorSpec) -> str:
    """The name of a tensor; with .gate or .up behind it where it is that part of another one."""
    part = "" if tensor.experts is None else tensor.experts.part
    return f"{tensor.name}.{part}" if part else tensor.name


def report_rank(vectors: Vectors, rank: int, wanted: int) -> None:
    """Tell that directions are missing, where they are."""
    if rank < wanted:
        report("rank_deficient", place_of(vectors.stack), rank)


def told_of(who: str, facts: Facts, meanings: Mapping[str, tuple[str, str]]) -> Told:
    """Facts for the record, each kind with its number of matrices and the first of them; and a note of what matters."""
    learned, notes = {}, []
    for kind, places in sorted(facts.items()):
        listed = dict(sorted(places.items())[:LISTED])
        learned[kind] = {"matrices": len(places), "first": listed}
        if kind in meanings:
            found, todo = meanings[kind]
            some = ", ".join(list(listed)[:3]) + (" ..." if len(places) > 3 else "")
            number = "1 matrix" if len(places) == 1 else f"{len(places)} matrices"
            notes.append(Note(f"{who}: {found.format(number)} ({some});", todo))
    return Told(learned={who: learned} if learned else {}, notes=tuple(notes))
