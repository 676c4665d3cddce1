"""What a mergekit configuration says, as values: which models, which layers, which settings of which tensor."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from agentmerge.mergekit.parameters import OF_ALL, OF_MODELS, READ, has_gradient, value_at

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping


@dataclass(frozen=True)
class SliceModel:
    """A model in a slice, with its own parameters."""

    model: str
    where: str
    parameters: Mapping[str, Any]


@dataclass(frozen=True)
class Slice:
    """A run of layers; the only one, from 0 to an unknown end, where whole models are given."""

    where: str
    start: int
    stop: int | None
    models: tuple[SliceModel, ...]
    parameters: Mapping[str, Any]


@dataclass(frozen=True)
class Found:
    """The value of a parameter for one tensor, and the path of the setting that gave it."""

    value: float
    where: str


@dataclass(frozen=True)
class MergekitConfig:
    """A configuration that takes every layer once and in order."""

    method: str
    """"" where it has no equal here."""
    base: str
    base_given: bool
    slices: tuple[Slice, ...]
    common: tuple[tuple[str, Mapping[str, Any]], ...]
    """Parameters of all slices by the path of their mapping, strongest first: those of a module, those at the top."""

    @property
    def models(self) -> tuple[str, ...]:
        """Every model but the base, in the order in which they are given."""
        given = dict.fromkeys(entry.model for part in self.slices for entry in part.models)
        return tuple(model for model in given if model != self.base)

    @property
    def layers(self) -> int | None:
        """How many layers the models have, where that is known."""
        return self.slices[-1].stop

    @property
    def has_gradients(self) -> bool:
        """Whether a setting runs over the layers."""
        return any(has_gradient(setting) for _, setting in self.settings())

    @property
    def graded(self) -> bool:
        """Whether layers may differ from each other."""
        return len(self.slices) > 1 or self.has_gradients

    def levels(self) -> Iterator[tuple[str, Mapping[str, Any], str | None]]:
        """Every mapping of parameters, with where it stands and the model that it is for."""
        for part in self.slices:
            yield from ((f"{entry.where}.parameters", entry.parameters, entry.model) for entry in part.models)
            if part.where:
                yield f"{part.where}.parameters", part.parameters, None
        yield from ((where, parameters, None) for where, parameters in self.common)

    def reads(self, name: str, model: str | None) -> bool:
        """Whether the method uses a parameter that stands at a model, or at none."""
        at_model = (
            name in OF_MODELS and (self.method, name) not in OF_ALL and (self.method == "linear" or model != self.base)
        )
        return name in READ.get(self.method, ()) and (model is None or at_model)

    def settings(self) -> Iterator[tuple[str, Any]]:
        """Every setting that the method uses, with where it stands."""
        for where, parameters, model in self.levels():
            yield from ((f"{where}.{name}", value) for name, value in parameters.items() if self.reads(name, model))

    def place(self, tensor: str) -> tuple[Slice, float]:
        """The slice that a tensor belongs to, and its place in the gradients of it, 0 to 1.

        What stands outside of the layers has the first value of a gradient, in the first slice or in the last one.
        """
        layer = layer_of(tensor)
        if layer is None:
            return self.slices[0 if is_embedding(tensor) else -1], 0.0
        for part in self.slices:
            if part.stop is None:
                return part, 0.0
            if part.start <= layer < part.stop:
                last = part.stop - part.start - 1
                return part, (layer - part.start) / last if last else SINGLE
        return self.slices[-1], 1.0

    def found(self, name: str, tensor: str, model: str | None = None) -> Found | None:
        """A parameter for one tensor, from the strongest level that has it; None where none has."""
        part, t = self.place(tensor)
        own = [(f"{entry.where}.parameters", entry.parameters) for entry in part.models if entry.model == model]
        for where, parameters in (*own, (f"{part.where}.parameters", part.parameters), *self.common):
            value = value_at(parameters[name], tensor, t) if name in parameters else None
            if value is not None:
                return Found(value, f"{where}.{name}")
        return None

    def value(self, name: str, tensor: str, model: str | None = None) -> float | None:
        """The value alone."""
        found = self.found(name, tensor, model)
        return None if found is None else found.value

    def entry_of(self, model: str, tensor: str) -> SliceModel | None:
        """Where a model stands in the slice that a tensor belongs to; None where it takes no part."""
        return next((entry for entry in self.place(tensor)[0].models if entry.model == model), None)


SINGLE = 1.0
"""The place in a gradient of the only layer of a slice."""


def layer_of(tensor: str) -> int | None:
    """The number of a tensor's layer; None outside of the layers."""
    match = re.search(r"(?:^|\.)layers\.(\d+)\.", tensor)
    return int(match[1]) if match else None


def is_embedding(tensor: str) -> bool:
    """Whether a tensor stands before the layers; what stands neither before nor in them stands after."""
    return "embed" in tensor
