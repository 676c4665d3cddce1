"""Which Gram matrix goes with a matrix, for methods that read them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from agentmerge.errors import RecipeError, Where

if TYPE_CHECKING:
    from agentmerge.methods.vectors import Vectors
    from agentmerge.tensors import TensorSpec


def gram_shape(tensor: TensorSpec, *, turned: bool) -> tuple[int, ...]:
    """[in, in] of a matrix [out, in], or [experts, in, in]; see Work.gram."""
    inputs = tensor.shape[-2 if turned else -1]
    return (*tensor.shape[:-2], inputs, inputs)


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
