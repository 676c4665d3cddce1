"""The model of a shape."""

from __future__ import annotations

from gemma3 import Gemma3
from model import Model, Weights

MODELS: dict[str, type[Model]] = {"llama": Model, "gemma3_text": Gemma3}


def model_of(weights: Weights, *, learns: bool = False) -> Model:
    """Over these weights, which may change in place; one that `learns` has leaves of its own."""
    return MODELS[weights.shape.family](weights, learns=learns)
