"""Which parameter of a model is which tensor of its files."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from agentmerge.errors import SourceError, Where, shortened
from agentmerge.tensors import MERGEABLE, TensorSpec

if TYPE_CHECKING:
    from collections.abc import Mapping


@dataclass(frozen=True, slots=True)
class Parameter:
    """What a model has under one name."""

    shape: tuple[int, ...]
    key: int
    """The same for every name of a tied parameter."""


@dataclass(frozen=True, slots=True)
class Match:
    """The arrays of an importance checkpoint."""

    specs: tuple[TensorSpec, ...]
    """float32, in the order of the model's files."""
    tied: Mapping[str, str]
    """A stored tensor that is left out, to the one that holds the same parameter."""
    not_float: tuple[str, ...]
    """Stored tensors that are left out because no method merges their dtype."""


def match(stored: Mapping[str, TensorSpec], model: Mapping[str, Parameter], source: str) -> Match:
    """One array for every float tensor of the files; two names of one parameter share the array of the first.

    Args:
        stored: the files' tensors.
        model: what the model calls its parameters, in the words of its files; the main name of a tied one first.
        source: of the model, for messages.

    Raises:
        SourceError: a parameter that no stored tensor holds, or in another shape.
    """
    first: dict[int, str] = {}
    for name, parameter in model.items():
        if name in stored:
            first.setdefault(parameter.key, name)
    lost = [name for name, parameter in model.items() if parameter.key not in first]
    if lost:
        raise SourceError(
            f"{source}: the files hold no tensor {shortened(lost)}, which the model as transformers loads it has",
            todo="Save it again with save_pretrained in this version of transformers.",
            where=Where(source=source, tensor=lost[0]),
        )
    tied = {name: first[n.key] for name, n in model.items() if name in stored and first[n.key] != name}
    floats = [spec for name, spec in stored.items() if name not in tied and spec.dtype in MERGEABLE]
    for spec in floats:
        if spec.name in model and model[spec.name].shape != spec.shape:
            shapes = f"{list(spec.shape)} in the file and {list(model[spec.name].shape)} in the model"
            todo, where = "Correct the model's config.json.", Where(source=source, tensor=spec.name)
            raise SourceError(f"{source}: {spec.name} is {shapes}", todo=todo, where=where)
    not_float = tuple(name for name, spec in stored.items() if spec.dtype not in MERGEABLE)
    return Match(tuple(TensorSpec(spec.name, "F32", spec.shape) for spec in floats), tied, not_float)
