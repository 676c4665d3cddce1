"""Which Gram matrix goes with a matrix, for methods that read them; and what the base must keep.

`keep` makes the base one more agent: its task vector is 0, its inputs are measured (`agentmerge grams BASE`), and it
counts `keep` times as much as an agent. A merge then moves least where the base's own inputs lie.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

from agentmerge.errors import RecipeError, Where

if TYPE_CHECKING:
    from agentmerge.methods.base import Context, Work
    from agentmerge.methods.vectors import Vectors
    from agentmerge.tensors import TensorSpec


SHARE = 0.1
"""What the base counts as beside an agent. At 135M it took half of the worst losses of what no agent was trained on,
and half a point of the agents' own skills; more keeps more and costs more (docs/evidence.md)."""


def gram_shape(tensor: TensorSpec, *, turned: bool) -> tuple[int, ...]:
    """[in, in] of a matrix [out, in], or [experts, in, in]; see Work.gram."""
    inputs = tensor.shape[-2 if turned else -1]
    return (*tensor.shape[:-2], inputs, inputs)


def keeps(keep: float | None, context: Context, name: str) -> float | None:
    """The setting `keep` of a method in a recipe: `SHARE` where that says what must be kept and the setting does not.

    It is None where the recipe says nothing. 0 is a number like others, so that a sweep or a rule may have it.

    Raises:
        RecipeError: there is nothing to keep.
    """
    if keep and not context.keep:
        raise RecipeError(
            f"{context.where}.keep: {keep:g}, but the recipe does not say what '{name}' must keep",
            todo="Give the recipe `keep`, Gram matrices that `agentmerge grams` makes of the base, or leave this out.",
            where=Where(path="keep"),
        )
    return (SHARE if keep is None else keep) if context.keep else None


def with_keep(work: Work, keep: float | None, shape: tuple[int, ...]) -> Work:
    """Work that is given the base's Gram matrix where the recipe says what to keep."""
    return work if keep is None else replace(work, reach="tensor", keep=shape)


def kept_gram(vectors: Vectors) -> Any:
    """The base's Gram matrix for these matrices, as stored, [in, in] or [count, in, in]; None where there is none."""
    keep, stack = vectors.stack.keep, vectors.stack
    if keep is None or keep.ndim == 2:
        return keep
    rows, columns = stack.block.tensor.shape[-2:]
    first, count = stack.block.start // (rows * columns), stack.base.size // (rows * columns)
    return keep[first] if count == 1 else keep[first : first + count]


def gram_of(vectors: Vectors, t: int) -> Any:
    """The Gram matrix of the inputs that agent t's own data give this matrix, as stored, [in, in].

    None of an agent that is skipped or lacks the tensor.

    Raises:
        RecipeError: what wraps the method keeps them from it.
    """
    stack = vectors.stack
    if not stack.grams:
        name = stack.block.tensor.name
        found = f"{name}: no Gram matrices, though the method needs them"
        raise RecipeError(found, todo="Use it by itself.", where=Where(tensor=name))
    gram = stack.grams[t]
    if gram is None or gram.ndim == 2:
        return gram
    rows, columns = stack.block.tensor.shape[-2:]
    return gram[stack.block.start // (rows * columns)]
