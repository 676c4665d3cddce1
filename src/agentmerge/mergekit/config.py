"""What a mergekit file says, as values: which models, which layers, which settings; all else is refused by its key."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from agentmerge.errors import did_you_mean
from agentmerge.mergekit.methods import read_method
from agentmerge.mergekit.parameters import OF_MODELS, READ, check_parameter, has_gradient, value_at

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from agentmerge.mergekit.parameters import Problems

TOP_KEYS = {
    *("merge_method", "base_model", "models", "slices", "parameters", "dtype", "out_dtype"),
    *("tokenizer_source", "tokenizer", "chat_template", "name", "modules", "input_model_parameters"),
}
"""What may stand at the top."""

NEAREST = (
    "rules with `take`, which copy single tensors from one agent; the number and the order of layers stay the base's"
)
TEMPLATE = "inputs.tokenizer_from with the agent whose template you want, or edit the result's tokenizer_config.json"
LAYERS_UNKNOWN = "a gradient runs over the layers of the model, whose number is not known."


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
        given = dict.fromkeys(entry.model for part in self.slices for entry in part.models)
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
        for part in self.slices:
            yield from ((f"{entry.where}.parameters", entry.parameters, entry.model) for entry in part.models)
            yield f"{part.where}.parameters".removeprefix("."), part.parameters, None
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
        for part in self.slices:
            if part.stop is None:
                return part, 0.0
            if part.start <= layer < part.stop:
                last = part.stop - part.start - 1
                return part, (layer - part.start) / last if last else 1.0
        return self.slices[-1], 1.0

    def value(self, name: str, tensor: str, model: str | None = None) -> float | None:
        """A parameter for one tensor, from the strongest level that has it; None where none has."""
        part, t = self.place(tensor)
        own = [entry.parameters for entry in part.models if entry.model == model]
        for parameters in (*own, part.parameters, self.parameters):
            value = value_at(parameters[name], tensor, t) if name in parameters else None
            if value is not None:
                return value
        return None

    def takes_part(self, model: str, tensor: str) -> bool:
        """Whether a model stands in the slice that a tensor belongs to."""
        return any(entry.model == model for entry in self.place(tensor)[0].models)


def layer_of(tensor: str) -> int | None:
    """The number of a tensor's layer; None outside of the layers."""
    match = re.search(r"(?:^|\.)layers\.(\d+)\.", tensor)
    return int(match[1]) if match else None


def is_embedding(tensor: str) -> bool:
    """Whether a tensor stands before the layers; what stands neither before nor in them stands after."""
    return "embed" in tensor


def read_config(data: Any, problems: Problems, layers: int | None) -> MergekitConfig:
    """Check plain data.

    Args:
        data: what the YAML holds.
        problems: gets what is refused and what is worth a note.
        layers: how many layers the models have; None where that is not known.

    Raises:
        RecipeError: what has no equal here, every problem on a line of its own.
    """
    method = read_method(data, problems)
    _check_top(data, problems)
    base = _model(data["base_model"], "base_model", problems) if data.get("base_model") is not None else None
    slices = _slices(data, base, layers, problems)
    problems.stop()
    if base is None and method != "linear":
        problems.refuse("base_model", "nothing", f"{method} needs the agents' common ancestor.", todo="Add it.")
        problems.stop()
    if base is None:
        base = slices[0].models[0].model
        problems.note(
            f"no base_model: {base}, the first model, is the base here, and the other models are the agents; "
            "the weighted mean is the same"
        )
    config = MergekitConfig(method, base, data.get("base_model") is not None, slices, data.get("parameters") or {})
    _check_parameters(config, problems)
    problems.stop()
    _check_use(config, problems)
    problems.stop()
    return config


def _check_top(data: dict[str, Any], problems: Problems) -> None:
    _check_known(data, "", TOP_KEYS, problems)
    if data.get("modules") is not None:
        why = "a merge of several modules is not here."
        problems.refuse("modules", list(data["modules"]), why, nearest="one file with `models` for each module")
    if (old := data.get("input_model_parameters")) is not None:
        problems.refuse("input_model_parameters", old, "an old place for parameters.", nearest="models.*.parameters")
    if (template := data.get("chat_template")) is not None:
        why = "the chat template is copied with the tokenizer, as it is."
        problems.refuse("chat_template", template, why, nearest=TEMPLATE)
    if data.get("name") is not None:
        problems.note(f"name: {data['name']!r} is left out; the result is named by --out")


def _slices(data: dict[str, Any], base: str | None, layers: int | None, problems: Problems) -> tuple[Slice, ...]:
    given = [key for key in ("models", "slices") if data.get(key)]
    if len(given) != 1:
        problems.refuse("models", " and ".join(given) or "neither", expected="either `models` or `slices`")
        return ()
    if not isinstance(data[given[0]], list):
        problems.refuse(given[0], data[given[0]], expected="a list")
        return ()
    if given == ["models"]:
        entries = [_entry(m, f"models.{i}", {"model", "parameters"}, problems) for i, m in enumerate(data["models"])]
        return (_slice("", (0, layers), entries, {}, problems),)
    return _joined(data["slices"], base, layers, problems)


def _joined(given: list[Any], base: str | None, layers: int | None, problems: Problems) -> tuple[Slice, ...]:
    """The slices in their order; refused where they leave out, repeat or move layers."""
    slices: list[Slice] = []
    for i, data in enumerate(given):
        part = _part(data, f"slices.{i}", base, problems)
        if part is None:
            return ()
        end = slices[-1].stop if slices else 0
        if part.start != end:
            why = f"the layers before it end at {end}, so layers would be left out, repeated or moved."
            problems.refuse(f"slices.{i}", f"layer_range from {part.start}", why, nearest=NEAREST)
        slices.append(part)
    end = slices[-1].stop
    if layers is not None and layers != end:
        why = f"the base has {layers} layers, and a result of another depth is not here."
        problems.refuse(f"slices.{len(slices) - 1}", f"layer_range up to {end}", why, nearest=NEAREST)
    if layers is None:
        problems.note(f"the slices end at layer {end}: taken for all the layers of the base")
    return tuple(slices)


def _part(data: Any, where: str, base: str | None, problems: Problems) -> Slice | None:
    if not isinstance(data, dict) or not isinstance(data.get("sources"), list) or not data["sources"]:
        problems.refuse(where, data, expected="a mapping with a list of sources")
        return None
    _check_known(data, where, {"sources", "parameters", "base_model", "residual_weight"}, problems)
    if data.get("residual_weight") is not None:
        problems.refuse(f"{where}.residual_weight", data["residual_weight"], "not here.")
    if data.get("base_model") not in (None, base):
        problems.refuse(f"{where}.base_model", data["base_model"], "a merge has one base for all its layers here.")
    named = [(f"{where}.sources.{i}", source) for i, source in enumerate(data["sources"])]
    entries = [_entry(source, name, {"model", "parameters", "layer_range"}, problems) for name, source in named]
    ranges = [_range(source, name, problems) for name, source in named]
    if None in ranges:
        return None
    if len(set(ranges)) > 1:
        why = "the sources of a slice give different layers; a layer can only be merged with the same layer here."
        problems.refuse(f"{where}.sources", f"layer_range {ranges}", why, nearest=NEAREST)
        return None
    return _slice(where, ranges[0] or (0, 0), entries, data.get("parameters") or {}, problems)


def _slice(
    where: str, run: tuple[int, int | None], entries: list[SliceModel | None], parameters: Any, problems: Problems
) -> Slice:
    good = tuple(entry for entry in entries if entry is not None)
    for i, entry in enumerate(good):
        if any(other.model == entry.model for other in good[:i]):
            problems.refuse(entry.where, entry.model, "this model stands here twice.", todo="Give it once.")
    return Slice(where, *run, good, parameters)


def _entry(data: Any, where: str, known: set[str], problems: Problems) -> SliceModel | None:
    if not isinstance(data, dict) or "model" not in data:
        problems.refuse(where, data, expected="a mapping with model")
        return None
    _check_known(data, where, known, problems)
    return SliceModel(_model(data["model"], f"{where}.model", problems), where, data.get("parameters") or {})


def _model(value: Any, where: str, problems: Problems) -> str:
    """A model's path or hub id."""
    if not isinstance(value, str) or not value:
        problems.refuse(where, value, expected="a path or a hub id as text")
        return ""
    if "+" in value:
        why = "mergekit reads it as a model and a LoRA adapter, which can't be applied here."
        nearest = "merge the adapter into its model first (PEFT: merge_and_unload) and name the result"
        problems.refuse(where, value, why, nearest=nearest)
    return value


def _range(data: Any, where: str, problems: Problems) -> tuple[int, int] | None:
    given = data.get("layer_range") if isinstance(data, dict) else None
    edges = given if isinstance(given, list) and [type(edge) for edge in given] == [int, int] else [0, 0]
    if not 0 <= edges[0] < edges[1]:
        problems.refuse(f"{where}.layer_range", given, expected="two layer numbers, the second one not included")
        return None
    return edges[0], edges[1]


def _check_known(data: dict[str, Any], where: str, known: set[str], problems: Problems) -> None:
    for key in data.keys() - known:
        path = f"{where}.{key}".removeprefix(".")
        problems.refuse(path, data[key], "unknown key.", todo=did_you_mean(str(key), known).strip())


def _check_parameters(config: MergekitConfig, problems: Problems) -> None:
    for where, parameters, model in config.levels():
        if not isinstance(parameters, dict):
            problems.refuse(where, parameters, expected="a mapping of parameters")
            continue
        for name, setting in parameters.items():
            here = config.reads(str(name), model)
            check_parameter(config.method, str(name), (f"{where}.{name}", setting), problems, here=here)


def _check_use(config: MergekitConfig, problems: Problems) -> None:
    if config.graded and config.layers is None:
        todo = "Say it with --layers, or write `slices` with layer_range instead of `models`."
        for where, setting in config.settings():
            if has_gradient(setting):
                problems.refuse(where, setting, LAYERS_UNKNOWN, todo=todo)
    if not config.models:
        problems.refuse("models", config.base, "there is no model beside the base, so nothing to merge.")
