"""From plain data to a MergekitConfig: every key that has no equal here is told by its path, all of them at once."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from agentmerge.mergekit.config import MergekitConfig, Slice, SliceModel
from agentmerge.mergekit.methods import read_method
from agentmerge.mergekit.models import read_model
from agentmerge.mergekit.parameters import check_keys, checked, has_gradient, value_at

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from agentmerge.mergekit.parameters import Problems

TOP_KEYS = {
    *("merge_method", "base_model", "models", "slices", "parameters", "dtype", "out_dtype", "random_seed", "seed"),
    *("tokenizer_source", "tokenizer", "chat_template", "name", "modules", "input_model_parameters"),
}
"""What may stand at the top."""
ONLY = "default"
"""The name of the only module of a model that has no others."""
MODULE_KEYS = {"models", "slices", "parameters"}
"""What may stand in a module."""

NEAREST = (
    "rules with `take`, which copy single tensors from one agent; the number and the order of layers stay the base's"
)
AFTER = ("model.norm.weight", "lm_head.weight")
"""What stands after the layers."""
OLD_GRADIENTS = (
    "gradients: the last norm and the head have the first value, as everything outside of the layers has in mergekit "
    "0.1.5; 0.0.6 and older gave them the last one. For a file that was made for those, add rules for *model.norm* and "
    "lm_head*"
)
LAYERS_UNKNOWN = "a gradient runs over the layers of the model, whose number is not known."


def read_config(
    data: Mapping[str, Any], problems: Problems, layers_of: Callable[[str], int | None], layers: int | None
) -> MergekitConfig | None:
    """Check plain data.

    Args:
        data: what the YAML holds.
        problems: gets what is refused and what is worth a note.
        layers_of: how many layers a model has; None where that can't be seen.
        layers: how many the models have; None where nobody said it.

    Returns:
        The configuration; None where too little of it is whole. What is wrong in it counts as not said.
    """
    method = read_method(data, problems)
    _check_top(data, problems)
    base = _optional_model(data, "base_model", problems)
    if base is None and method not in ("", "linear"):
        problems.refuse("base_model", "nothing", f"{method} needs the agents' common ancestor.", todo="Add it.")
    module, place = _module(data, problems)
    layers = layers or _layers_of_any(data, module, layers_of)
    reader = _Reader(base, base or _first_model(module), problems, layers)
    slices = reader.slices(module, place)
    common = [(f"{place}parameters", module.get("parameters") or {})] if place else []
    common.append(("parameters", data.get("parameters") or {}))
    if not slices:
        return None
    config = MergekitConfig(method, base or slices[0].models[0].model, base is not None, slices, tuple(common))
    if base is None and method == "linear":
        problems.note(
            f"no base_model: {config.base}, the first model, is the base here, and the other models are the agents; "
            "the weighted mean is the same"
        )
    return _usable(_with_checked(config, problems), problems)


def _check_top(data: Mapping[str, Any], problems: Problems) -> None:
    check_keys(data, "", TOP_KEYS, problems)
    if (old := data.get("input_model_parameters")) is not None:
        problems.refuse("input_model_parameters", old, "an old place for parameters.", nearest="models.*.parameters")
    if data.get("name") is not None:
        problems.note(f"name: {data['name']!r} is left out; the result is named by --out")


def _module(data: Mapping[str, Any], problems: Problems) -> tuple[Mapping[str, Any], str]:
    """What holds models or slices, and what its paths start with: the top, or the only module."""
    modules = data.get("modules")
    if modules is None:
        return data, ""
    if not isinstance(modules, dict) or set(modules) != {ONLY} or not isinstance(modules[ONLY], dict):
        why = "a merge of several modules is not here."
        found = list(modules) if isinstance(modules, dict) else modules
        problems.refuse("modules", found, why, nearest="one file with `models` for each module")
        return {"models": data.get("models"), "slices": data.get("slices")}, ""
    for key in ("models", "slices"):
        if data.get(key):
            problems.refuse(key, f"{key} beside modules", expected="one of the two")
    check_keys(modules[ONLY], f"modules.{ONLY}", MODULE_KEYS, problems)
    return modules[ONLY], f"modules.{ONLY}."


def _layers_of_any(
    data: Mapping[str, Any], module: Mapping[str, Any], layers_of: Callable[[str], int | None]
) -> int | None:
    """The number of layers of the first model whose config can be seen, the base before the others."""
    named = [data.get("base_model"), *_named(module)]
    found = (layers_of(model) for value in named if value and (model := read_model(value, "", None)))
    return next((layers for layers in found if layers is not None), None)


def _named(module: Mapping[str, Any]) -> list[Any]:
    """What a module names as models, in the order in which they stand there."""
    listed, slices = (found if isinstance(found := module.get(key), list) else [] for key in ("models", "slices"))
    sources = [source for part in slices if isinstance(part, dict) for source in part.get("sources") or []]
    return [entry.get("model") for entry in [*listed, *sources] if isinstance(entry, dict)]


def _first_model(module: Mapping[str, Any]) -> str | None:
    """What is the base where none is given."""
    return next((read_model(value, "", None) for value in _named(module)), None)


def _optional_model(data: Mapping[str, Any], key: str, problems: Problems) -> str | None:
    """A model by its text; one that can't be read is told and stands for itself, so that the rest is checked, too."""
    value = data.get(key)
    return None if value is None else read_model(value, key, problems) or str(value)


class _Reader:
    """What every slice is read with."""

    def __init__(self, base: str | None, below: str | None, problems: Problems, layers: int | None) -> None:
        self._base, self._below, self._problems, self._layers = base, below, problems, layers

    def slices(self, data: Mapping[str, Any], place: str) -> tuple[Slice, ...]:
        """The slices of a module or of the top; none where there is nothing whole."""
        given = [key for key in ("models", "slices") if data.get(key)]
        if len(given) != 1:
            if not self._problems.about("modules"):
                self._problems.refuse(
                    f"{place}models", " and ".join(given) or "neither", expected="either `models` or `slices`"
                )
            return ()
        listed, key = data[given[0]], f"{place}{given[0]}"
        if not isinstance(listed, list):
            self._problems.refuse(key, listed, expected="a list")
            return ()
        if given == ["slices"]:
            return self._joined(listed, key)
        entries = [self._entry(entry, f"{key}.{i}", {"model", "parameters"}) for i, entry in enumerate(listed)]
        return self._slice("", (0, self._layers), entries, {})

    def _joined(self, given: list[Any], where: str) -> tuple[Slice, ...]:
        """The slices in their order; refused where they leave out, repeat or move layers."""
        slices: list[Slice] = []
        for i, data in enumerate(given):
            found = self._part(data, f"{where}.{i}")
            end = slices[-1].stop if slices else 0
            if found and found[0].start != end:
                why = f"the layers before it end at {end}, so layers would be left out, repeated or moved."
                self._problems.refuse(f"{where}.{i}", f"layer_range from {found[0].start}", why, nearest=NEAREST)
            slices += found
        end = slices[-1].stop if slices else None
        if self._layers is not None and slices and self._layers != end:
            why = f"the base has {self._layers} layers, and a result of another depth is not here."
            last = f"{where}.{len(given) - 1}"
            self._problems.refuse(last, f"layer_range up to {end}", why, nearest=NEAREST)
        if self._layers is None and slices:
            self._problems.note(f"the slices end at layer {end}: taken for all the layers of the base")
        return tuple(slices)

    def _part(self, data: Any, where: str) -> tuple[Slice, ...]:
        problems = self._problems
        if not isinstance(data, dict) or not isinstance(data.get("sources"), list) or not data["sources"]:
            problems.refuse(where, data, expected="a mapping with a list of sources")
            return ()
        check_keys(data, where, {"sources", "parameters", "base_model", "residual_weight"}, problems)
        if data.get("residual_weight") is not None:
            problems.refuse(f"{where}.residual_weight", data["residual_weight"], "not here.")
        if _optional_model(data, "base_model", problems) not in (None, self._base):
            why = "a merge has one base for all its layers here."
            problems.refuse(f"{where}.base_model", data["base_model"], why)
        named = [(f"{where}.sources.{i}", source) for i, source in enumerate(data["sources"])]
        entries = [self._entry(source, name, {"model", "parameters", "layer_range"}) for name, source in named]
        run = self._run([_range(source, name, problems) for name, source in named], where)
        return () if run is None else self._slice(where, run, entries, data.get("parameters") or {})

    def _run(self, ranges: list[tuple[int, int] | None], where: str) -> tuple[int, int] | None:
        """The layers that all sources of a slice give; None where one of them says it wrongly."""
        if None in ranges:
            return None
        if len(set(ranges)) > 1:
            why = "the sources of a slice give different layers; a layer can only be merged with the same layer here."
            self._problems.refuse(f"{where}.sources", f"layer_range {ranges}", why, nearest=NEAREST)
        return ranges[0]

    def _slice(
        self, where: str, run: tuple[int, int | None], entries: list[SliceModel | None], parameters: Any
    ) -> tuple[Slice, ...]:
        good = tuple(entry for entry in entries if entry is not None)
        for i, entry in enumerate(good):
            if any(other.model == entry.model for other in good[:i]):
                self._problems.refuse(entry.where, entry.model, "this model stands here twice.", todo="Give it once.")
        return (Slice(where, *run, good, parameters),) if good else ()

    def _entry(self, data: Any, where: str, known: set[str]) -> SliceModel | None:
        if not isinstance(data, dict) or "model" not in data:
            self._problems.refuse(where, data, expected="a mapping with model")
            return None
        check_keys(data, where, known, self._problems)
        model = read_model(data["model"], f"{where}.model", self._problems, self._below) or str(data["model"])
        return SliceModel(model, where, data.get("parameters") or {})


def _range(data: Any, where: str, problems: Problems) -> tuple[int, int] | None:
    given = data.get("layer_range") if isinstance(data, dict) else None
    edges = given if isinstance(given, list) and [type(edge) for edge in given] == [int, int] else [0, 0]
    if not 0 <= edges[0] < edges[1]:
        problems.refuse(f"{where}.layer_range", given, expected="two layer numbers, the second one not included")
        return None
    return edges[0], edges[1]


def _with_checked(config: MergekitConfig, problems: Problems) -> MergekitConfig:
    """The same with those parameters alone that have a value and are used."""

    def good(where: str, parameters: Any, model: str | None) -> Mapping[str, Any]:
        return checked(config.method, where, parameters, problems, reads=lambda name: config.reads(name, model))

    def part(found: Slice) -> Slice:
        models = tuple(
            SliceModel(e.model, e.where, good(f"{e.where}.parameters", e.parameters, e.model)) for e in found.models
        )
        return Slice(
            found.where, found.start, found.stop, models, good(f"{found.where}.parameters", found.parameters, None)
        )

    common = tuple((where, good(where, parameters, None)) for where, parameters in config.common)
    return MergekitConfig(config.method, config.base, config.base_given, tuple(map(part, config.slices)), common)


def _usable(config: MergekitConfig, problems: Problems) -> MergekitConfig | None:
    """The configuration, where it has agents; a gradient over an unknown number of layers is told."""
    if config.graded and config.layers is None:
        todo = "Say it with --layers, or write `slices` with layer_range instead of `models`."
        for where, setting in config.settings():
            if has_gradient(setting):
                problems.refuse(where, setting, LAYERS_UNKNOWN, todo=todo)
    if any(
        value_at(setting, name, 0.0) != value_at(setting, name, 1.0)
        for _, setting in config.settings()
        for name in AFTER
    ):
        problems.note(OLD_GRADIENTS)
    if not config.models:
        problems.refuse("models", config.base, "there is no model beside the base, so nothing to merge.")
        return None
    return config
