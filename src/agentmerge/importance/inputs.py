"""Sums of x x^T over the inputs x of a model's linear layers, by hooks; imports torch."""

from __future__ import annotations

import math
import weakref
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch

from agentmerge.errors import DataError, MergeError
from agentmerge.importance.fisher import (
    DEVICES,
    DTYPES,
    VERSIONS,
    as_stored,
    choose_device,
    line_of,
    load_model,
    load_tokenizer,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence
    from pathlib import Path

    from agentmerge.importance.tokens import TokenSequence
    from agentmerge.tensors import Array

__all__ = ["DEVICES", "DTYPES", "VERSIONS", "Inputs", "Layer", "choose_device", "load_tokenizer"]

KINDS = ("Linear", "Conv1D")
"""Classes of modules, by name: torch's own, and the one of transformers that stores its weight turned."""


@dataclass(frozen=True, slots=True)
class Layer:
    """What one or several linear layers of a model take in."""

    modules: tuple[str, ...]
    """Their names in the model; all of them are given the same tensor."""
    weights: tuple[str, ...]
    """Their weights in the words of the model's files."""
    size: int
    """Numbers of one input."""


class Inputs:
    """The model, and the sums of some of its layers: sum over the tokens of x x^T, x the input of the layer."""

    def __init__(self, folder: Path, device: str, dtype: str, stored: str, per: str = "token") -> None:
        """Load the model.

        Args:
            folder: config and weights.
            device: "cpu" or "cuda".
            dtype: a key of DTYPES: of weights and activations.
            stored: "float64" or "float32": of the products and their sums.
            per: "token" or "example": what counts 1 in a sum; each token of an example as its share of that.

        Raises:
            SourceError: transformers can't load it as a causal language model, or the files lack a weight.
        """
        self._device, self._dtype, self._per, self._share = device, DTYPES[stored], per, 1.0
        self._model = load_model(folder, DTYPES[dtype]).to(device).requires_grad_(False)
        self._sums: dict[str, Any] = {}
        self._total = torch.zeros((), dtype=torch.float64, device=device)

    def layers(self, wanted: Callable[[str], bool], example: TokenSequence) -> tuple[Layer, ...]:
        """The linear layers, those that share their inputs together, in the order in which the model calls them.

        Args:
            wanted: whether a weight of the files is one of them, by name.
            example: put through the model to see which of them are given the same tensor.
        """
        modules = {name: module for name, module in self._model.named_modules() if type(module).__name__ in KINDS}
        weights = {name: tuple(filter(wanted, found)) for name, found in self._stored(modules).items()}
        modules = {name: module for name, module in modules.items() if weights[name]}
        seen: dict[str, list[Any]] = {name: [] for name in modules}  # the tensors themselves, so that none is freed
        order: dict[str, None] = {}

        def note(name: str) -> Callable[[Any, Any], None]:
            def hook(_: Any, given: Any) -> None:
                seen[name].append(given[0])
                order.setdefault(name)

            return hook

        self._with_hooks({modules[name]: note(name) for name in modules}, example)
        groups: dict[Any, list[str]] = {}
        for name in [*order, *(name for name in modules if name not in order)]:
            key = tuple(map(id, seen[name])) or name
            groups.setdefault(key, []).append(name)
        return tuple(
            Layer(tuple(names), tuple(w for name in names for w in weights[name]), _width(modules[names[0]]))
            for names in groups.values()
        )

    def begin(self, layers: Iterable[Layer]) -> None:
        """Sum over these layers from now on, from 0."""
        self._sums.clear()  # first: there may be no room for both
        for layer in layers:
            self._sums[layer.weights[0]] = torch.zeros((layer.size, layer.size), dtype=self._dtype, device=self._device)

    def observe(self, layers: Sequence[Layer], example: TokenSequence) -> None:
        """Add one example to the sums of the layers that were begun.

        Raises:
            DataError: an input is not finite.
            MergeError: the device has too little memory, or layers don't share their inputs after all.
        """
        modules = dict(self._model.named_modules())
        hooks: dict[Any, Callable[[Any, Any], None]] = {}
        for layer in layers:
            latest = _Latest(layer)
            hooks[modules[layer.modules[0]]] = self._adder(self._sums[layer.weights[0]], latest)
            hooks |= {modules[name]: latest.compare for name in layer.modules[1:]}
        self._total.zero_()
        self._share = 1 / example.tokens if self._per == "example" else 1.0
        try:
            self._with_hooks(hooks, example)
        except torch.cuda.OutOfMemoryError as error:
            needs = f"the example of line {example.line} ({example.tokens} tokens) needs more memory than the GPU has:"
            todo = f"{line_of(error)} Lower --memory or --max-length, or use --device cpu."
            raise MergeError(needs, todo=todo) from None
        if not math.isfinite(float(self._total)):
            raise DataError(
                f"the example of line {example.line} gives inputs of layers that are not finite",
                expected="finite numbers",
                todo="Try --dtype float32, and check the model with `agentmerge probe`.",
            )

    def sums(self) -> Iterator[tuple[str, Array]]:
        """The sums by the first weight of their layers; views where they are in the CPU's memory."""
        for name, total in self._sums.items():
            yield name, total.cpu().numpy()

    def restore(self, sums: Iterable[tuple[str, Array]]) -> None:
        """Go on from the sums of an earlier run, flat."""
        for name, array in sums:
            self._sums[name].copy_(torch.from_numpy(array).reshape(self._sums[name].shape))

    def _adder(self, total: Any, latest: _Latest) -> Callable[[Any, Any], None]:
        def add(_: Any, given: Any) -> None:
            latest.given = weakref.ref(given[0])
            rows = given[0].reshape(-1, len(total)).to(self._dtype)
            total.addmm_(rows.T, rows, alpha=self._share)
            self._total += rows.square().sum()

        return add

    def _with_hooks(self, hooks: dict[Any, Callable[[Any, Any], None]], example: TokenSequence) -> None:
        """Put prompt and response through the model, the hooks being called before their modules."""
        tokens = torch.tensor([[*example.prompt, *example.response]], device=self._device)
        handles = [module.register_forward_pre_hook(hook) for module, hook in hooks.items()]
        try:
            with torch.no_grad():
                self._model(input_ids=tokens, use_cache=False)
        finally:
            for handle in handles:
                handle.remove()

    def _stored(self, modules: dict[str, Any]) -> dict[str, list[str]]:
        """The weights of modules as the files name them; several where the model joins those of the files."""
        shapes = {name: torch.empty(p.shape, device="meta") for name, p in self._model.named_parameters()}
        owners = {id(p): name for name, p in self._model.named_parameters()}
        made: dict[int, list[str]] = {}
        for name, array in as_stored(self._model, shapes).items():
            made.setdefault(id(array if array._base is None else array._base), []).append(name)
        return {name: made.get(id(shapes[owners[id(m.weight)]]), []) for name, m in modules.items()}


class _Latest:
    """The input that the first of several layers was given, for the others to be compared with."""

    def __init__(self, layer: Layer) -> None:
        self._layer = layer
        self.given: Callable[[], Any] = lambda: None

    def compare(self, _: Any, given: Any) -> None:
        """A hook of the others."""
        if self.given() is not given[0]:
            first, *others = self._layer.weights
            raise MergeError(f"{', '.join(others)}: given other inputs than {first} after all", todo="Report this.")


def _width(module: Any) -> int:
    turned = type(module).__name__ == "Conv1D"
    return int(module.weight.shape[0 if turned else -1])
