"""A mergekit configuration as plain data, checked: which models, which layers, which settings. Knows nothing of ours."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from agentmerge.convert.findings import METHODS, MIXTURE_KEYS, NEAREST_METHOD, Findings
from agentmerge.convert.names import is_embedding, layer_of
from agentmerge.convert.settings import has_gradient, is_setting, value_at
from agentmerge.errors import RecipeError, did_you_mean

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

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

KNOWN = frozenset().union(*READ.values(), {"int8_mask", "gamma", "t", "select_topk", "filter_wise"})
"""Parameters of any of mergekit's methods that may stand in a configuration of another."""

TOP_KEYS = {
    *("merge_method", "base_model", "models", "slices", "parameters", "dtype", "out_dtype"),
    *("tokenizer_source", "tokenizer", "chat_template", "name", "modules", "input_model_parameters"),
}
"""What may stand at the top."""


@dataclass(frozen=True)
class Source:
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
    sources: tuple[Source, ...]
    parameters: Mapping[str, Any]


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
        settings = (setting for _, parameters in self.levels() for setting in parameters.values())
        return len(self.slices) > 1 or any(has_gradient(setting) for setting in settings)

    def levels(self) -> Iterator[tuple[str, Mapping[str, Any]]]:
        """Every mapping of parameters, with where it stands."""
        for piece in self.slices:
            yield from ((f"{source.where}.parameters", source.parameters) for source in piece.sources)
            yield f"{piece.where}.parameters", piece.parameters
        yield "parameters", self.parameters

    def place(self, tensor: str) -> tuple[Slice, float | None]:
        """The slice that a tensor belongs to, and its place in the gradients of it, 0 to 1; None: not known."""
        layer = layer_of(tensor)
        if layer is None:
            return (self.slices[0], 0.0) if is_embedding(tensor) else (self.slices[-1], 1.0)
        for piece in self.slices:
            if piece.stop is None:
                return piece, None
            if piece.start <= layer < piece.stop:
                last = piece.stop - piece.start - 1
                return piece, (layer - piece.start) / last if last else 1.0
        return self.slices[-1], 1.0

    def value(self, name: str, tensor: str, model: str | None = None) -> float | None:
        """A parameter for one tensor, from the strongest level that has it; None where none has."""
        piece, t = self.place(tensor)
        own = [(f"{s.where}.parameters", s.parameters) for s in piece.sources if s.model == model]
        for where, parameters in (
            *own,
            (f"{piece.where}.parameters", piece.parameters),
            ("parameters", self.parameters),
        ):
            if name in parameters:
                found = value_at(parameters[name], tensor, t, f"{where}.{name}".removeprefix("."))
                if found is not None:
                    return found
        return None

    def takes_part(self, model: str, tensor: str) -> bool:
        """Whether a model is a source of the slice that a tensor belongs to."""
        return any(source.model == model for source in self.place(tensor)[0].sources)


def read_config(data: Any, findings: Findings, layers: int | None) -> MergekitConfig:
    """Check plain data.

    Args:
        data: what the YAML holds.
        findings: gets refusals and warnings.
        layers: how many layers the models have; None where that is not known.

    Raises:
        RecipeError: what has no equal here, every refusal on a line of its own.
    """
    method = _method(data, findings)
    _check_keys(data, findings)
    base = model_of(data["base_model"], "base_model", findings) if data.get("base_model") is not None else None
    slices = _slices(data, base, layers, findings)
    findings.stop()
    if base is None and method != "linear":
        findings.refuse("base_model", "nothing", f"{method} needs the agents' common ancestor. Add it.")
        findings.stop()
    if base is None:
        base = slices[0].sources[0].model
        findings.warn(
            f"no base_model: {base}, the first model, is the base here, and the other models are the agents; "
            "the weighted mean is the same"
        )
    config = MergekitConfig(method, base, data.get("base_model") is not None, slices, data.get("parameters") or {})
    _check_parameters(config, findings)
    if not config.models:
        findings.refuse("models", base, "there is no model beside the base, so nothing to merge.")
    findings.stop()
    return config


def model_of(value: Any, where: str, findings: Findings) -> str:
    """A model's path or hub id."""
    if not isinstance(value, str) or not value:
        findings.refuse(where, value, "expected a path or a hub id as text.")
        return ""
    if "+" in value:
        findings.refuse(
            where,
            value,
            "mergekit reads it as a model and a LoRA adapter, which can't be applied here.",
            "merge the adapter into its model first (PEFT: merge_and_unload) and name the result",
        )
    return value


def _method(data: Any, findings: Findings) -> str:
    if not isinstance(data, dict):
        raise RecipeError(f"{findings.file}: expected a mergekit configuration with merge_method, found {data!r:.80}.")
    mixture = [key for key in MIXTURE_KEYS if key in data]
    if mixture:
        findings.refuse(
            mixture[0],
            data[mixture[0]],
            "it builds a mixture of experts, which is not here.",
            "merge the agents instead",
        )
        findings.stop()
    method = data.get("merge_method")
    if method is None:
        raise RecipeError(f"{findings.file}: merge_method: missing. Is this a mergekit configuration?")
    if method not in METHODS:
        nearest = NEAREST_METHOD.get(str(method), "")
        why = "this method is not here." if nearest else f"no method of that name.{did_you_mean(str(method), METHODS)}"
        findings.refuse("merge_method", method, why, nearest)
        findings.stop()
    return str(method)


def _check_keys(data: dict[str, Any], findings: Findings) -> None:
    for key in data.keys() - TOP_KEYS:
        findings.refuse(str(key), data[key], f"unknown key.{did_you_mean(str(key), TOP_KEYS)}")
    if data.get("modules") is not None:
        why = "a merge of several modules is not here."
        findings.refuse("modules", list(data["modules"]), why, "one file with `models` for each module")
    if data.get("input_model_parameters") is not None:
        why = "an old place for parameters."
        findings.refuse("input_model_parameters", data["input_model_parameters"], why, "models.*.parameters")
    if data.get("chat_template") is not None:
        why = "the chat template is copied with the tokenizer, as it is."
        nearest = (
            "inputs.tokenizer_from with the agent whose template you want, or edit the result's tokenizer_config.json"
        )
        findings.refuse("chat_template", data["chat_template"], why, nearest)
    if data.get("name") is not None:
        findings.warn(f"name: {data['name']!r} is left out; the result is named by --out")


def _slices(data: dict[str, Any], base: str | None, layers: int | None, findings: Findings) -> tuple[Slice, ...]:
    from agentmerge.convert.slices import slices_of_models, slices_of_slices

    given = [key for key in ("models", "slices") if data.get(key)]
    if len(given) != 1:
        findings.refuse("models", " and ".join(given) or "neither", "expected either `models` or `slices`.")
        return ()
    if given == ["models"]:
        return slices_of_models(data["models"], layers, findings)
    return slices_of_slices(data["slices"], base, layers, findings)


def _check_parameters(config: MergekitConfig, findings: Findings) -> None:
    for where, parameters in config.levels():
        if not isinstance(parameters, dict):
            findings.refuse(where, parameters, "expected a mapping of parameters.")
            continue
        for name, setting in parameters.items():
            _check_parameter(config.method, f"{where}.{name}".removeprefix("."), str(name), setting, findings)


def _check_parameter(method: str, where: str, name: str, setting: Any, findings: Findings) -> None:
    if name not in KNOWN:
        findings.refuse(where, setting, f"unknown parameter.{did_you_mean(name, READ[method])}")
    elif name == "int8_mask":
        findings.warn(f"{where}: left out; it saves memory in mergekit and changes no number")
    elif name not in READ[method]:
        findings.warn(f"{where}: left out; {method} does not use it")
    elif not is_setting(setting):
        findings.refuse(where, setting, "expected a number, a list of numbers, or a list of {filter, value}.")
