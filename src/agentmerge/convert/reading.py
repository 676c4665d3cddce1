"""From the plain data of a mergekit configuration to its values; what has no equal here is refused by its key."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from agentmerge.convert.config import OF_MODELS, READ, MergekitConfig
from agentmerge.convert.findings import METHODS, MIXTURE_KEYS, NEAREST_METHOD
from agentmerge.convert.settings import LAYERS_UNKNOWN, has_gradient, is_setting
from agentmerge.convert.slices import Slice, model_of, slices_of_models, slices_of_slices
from agentmerge.errors import RecipeError, did_you_mean

if TYPE_CHECKING:
    from agentmerge.convert.findings import Findings

KNOWN = frozenset().union(*READ.values(), {"int8_mask", "gamma", "t", "select_topk", "filter_wise"})
"""Parameters of any of mergekit's methods that may stand in a configuration of another."""

TOP_KEYS = {
    *("merge_method", "base_model", "models", "slices", "parameters", "dtype", "out_dtype"),
    *("tokenizer_source", "tokenizer", "chat_template", "name", "modules", "input_model_parameters"),
}
"""What may stand at the top."""


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
    findings.stop()
    if config.graded and config.layers is None:
        for where, setting in config.settings():
            if has_gradient(setting):
                findings.refuse(where, setting, LAYERS_UNKNOWN)
    if not config.models:
        findings.refuse("models", base, "there is no model beside the base, so nothing to merge.")
    findings.stop()
    return config


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
    given = [key for key in ("models", "slices") if data.get(key)]
    if len(given) != 1:
        findings.refuse("models", " and ".join(given) or "neither", "expected either `models` or `slices`.")
        return ()
    if given == ["models"]:
        return slices_of_models(data["models"], layers, findings)
    return slices_of_slices(data["slices"], base, layers, findings)


def _check_parameters(config: MergekitConfig, findings: Findings) -> None:
    for where, parameters, model in config.levels():
        if not isinstance(parameters, dict):
            findings.refuse(where, parameters, "expected a mapping of parameters.")
            continue
        for name, setting in parameters.items():
            _check_parameter(config, f"{where}.{name}", str(name), setting, model, findings)


def _check_parameter(
    config: MergekitConfig, where: str, name: str, setting: Any, model: str | None, findings: Findings
) -> None:
    if name not in KNOWN:
        findings.refuse(where, setting, f"unknown parameter.{did_you_mean(name, READ[config.method])}")
    elif name == "int8_mask":
        findings.warn(f"{where}: left out; it saves memory in mergekit and changes no number")
    elif name not in READ[config.method]:
        findings.warn(f"{where}: left out; mergekit's {config.method} does not use it")
    elif not config.reads(name, model):
        why = "it is the base's" if name in OF_MODELS else "mergekit reads it at a slice or at the top only"
        findings.warn(f"{where}: left out; {why}")
    elif not is_setting(setting):
        findings.refuse(where, setting, "expected a number, a list of numbers, or a list of {filter, value}.")
