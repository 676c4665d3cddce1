"""A mergekit configuration as values: which models, which layers, which settings. Knows nothing of ours."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from agentmerge.convert.names import is_embedding, layer_of
from agentmerge.convert.settings import has_gradient, value_at

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from agentmerge.convert.slices import Slice

READ: Mapping[str, frozenset[str]] = {
    "linear": frozenset({"weight", "normalize"}),
    "task_arithmetic": frozenset({"weight", "normalize", "lambda"}),
    "ties": frozenset({"weight", "density", "normalize", "lambda", "rescale"}),
    "dare_linear": frozenset({"weight", "density", "normalize", "lambda", "rescale"}),
    "dare_ties": frozenset({"weight", "density", "normalize", "lambda", "rescale"}),
    "ram": frozenset({"epsilon"}),
    "ramplus_tl": frozenset({"r", "alpha", "epsilon"}),
}
"""The parameters that change what a method gives."""

OF_MODELS = ("weight", "density")
"""Those of them that may differ from model to model; mergekit looks for the others at the slice and at the top only."""


@dataclass(frozen=True)
class MergekitConfig:
    """A configuration that takes every layer once and in order."""

    method: str
    base: str
    base_given: bool
    slices: tuple[Slice, ...]
    parameters: Mapping[str, Any]

    @property
    def models(self) -> tuple[str, ...]:
        """Every model but the base, in the order in which they are given."""
        given = dict.fromkeys(source.model for piece in self.slices for source in piece.sources)
        return tuple(model for model in given if model != self.base)

    @property
    def layers(self) -> int | None:
        """How many layers the models have, where that is known."""
        return self.slices[-1].stop

    @property
    def graded(self) -> bool:
        """Whether layers may differ from each other."""
        return len(self.slices) > 1 or any(has_gradient(setting) for _, setting in self.settings())

    def levels(self) -> Iterator[tuple[str, Mapping[str, Any], str | None]]:
        """Every mapping of parameters, with where it stands and the model that it is for."""
        for piece in self.slices:
            yield from ((f"{source.where}.parameters", source.parameters, source.model) for source in piece.sources)
            yield f"{piece.where}.parameters".removeprefix("."), piece.parameters, None
        yield "parameters", self.parameters, None

    def reads(self, name: str, model: str | None) -> bool:
        """Whether the method uses a parameter that stands at a model, or at none."""
        at_model = name in OF_MODELS and (self.method == "linear" or model != self.base)
        return name in READ[self.method] and (model is None or at_model)

    def settings(self) -> Iterator[tuple[str, Any]]:
        """Every setting that the method uses, with where it stands."""
        for where, parameters, model in self.levels():
            yield from ((f"{where}.{name}", value) for name, value in parameters.items() if self.reads(name, model))

    def place(self, tensor: str) -> tuple[Slice, float]:
        """The slice that a tensor belongs to, and its place in the gradients of it, 0 to 1."""
        layer = layer_of(tensor)
        if layer is None:
            return (self.slices[0], 0.0) if is_embedding(tensor) else (self.slices[-1], 1.0)
        for piece in self.slices:
            if piece.stop is None:
                return piece, 0.0
            if piece.start <= layer < piece.stop:
                last = piece.stop - piece.start - 1
                return piece, (layer - piece.start) / last if last else 1.0
        return self.slices[-1], 1.0

    def value(self, name: str, tensor: str, model: str | None = None) -> float | None:
        """A parameter for one tensor, from the strongest level that has it; None where none has."""
        piece, t = self.place(tensor)
        own = [source.parameters for source in piece.sources if source.model == model]
        for parameters in (*own, piece.parameters, self.parameters):
            found = value_at(parameters[name], tensor, t) if name in parameters else None
            if found is not None:
                return found
        return None

    def takes_part(self, model: str, tensor: str) -> bool:
        """Whether a model is a source of the slice that a tensor belongs to."""
        return any(source.model == model for source in self.place(tensor)[0].sources)
