"""The layers that a mergekit configuration takes: all of them, once and in order, or it has no equal here."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from agentmerge.errors import did_you_mean

if TYPE_CHECKING:
    from collections.abc import Mapping

    from agentmerge.convert.findings import Findings

NEAREST = (
    "rules with `take`, which copy single tensors from one agent; the number and the order of layers stay the base's"
)


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


def slices_of_models(models: Any, layers: int | None, findings: Findings) -> tuple[Slice, ...]:
    """One slice of whole models."""
    if not isinstance(models, list):
        findings.refuse("models", models, "expected a list.")
        return ()
    sources = [_source(model, f"models.{i}", {"model", "parameters"}, findings) for i, model in enumerate(models)]
    return (_slice("", 0, layers, sources, {}, findings),)


def slices_of_slices(given: Any, base: str | None, layers: int | None, findings: Findings) -> tuple[Slice, ...]:
    """The slices in their order; refused where they leave out, repeat or move layers."""
    if not isinstance(given, list):
        findings.refuse("slices", given, "expected a list.")
        return ()
    found: list[Slice] = []
    for i, data in enumerate(given):
        piece = _piece(data, f"slices.{i}", base, findings)
        if piece is None:
            return ()
        expected = found[-1].stop if found else 0
        if piece.start != expected:
            why = f"the layers before it end at {expected}, so layers would be left out, repeated or moved."
            findings.refuse(f"slices.{i}", f"layer_range from {piece.start}", why, NEAREST)
        found.append(piece)
    end = found[-1].stop
    if layers is not None and layers != end:
        why = f"the base has {layers} layers, and a result of another depth is not here."
        findings.refuse(f"slices.{len(found) - 1}", f"layer_range up to {end}", why, NEAREST)
    if layers is None:
        findings.warn(f"the slices end at layer {end}: taken for all the layers of the base")
    return tuple(found)


def _piece(data: Any, where: str, base: str | None, findings: Findings) -> Slice | None:
    known = {"sources", "parameters", "base_model", "residual_weight"}
    if not isinstance(data, dict) or not isinstance(data.get("sources"), list) or not data["sources"]:
        findings.refuse(where, data, "expected a mapping with a list of sources.")
        return None
    _check_known(data, where, known, findings)
    if data.get("residual_weight") is not None:
        findings.refuse(f"{where}.residual_weight", data["residual_weight"], "not here.")
    if data.get("base_model") not in (None, base):
        findings.refuse(f"{where}.base_model", data["base_model"], "a merge has one base for all its layers here.")
    names = [f"{where}.sources.{i}" for i in range(len(data["sources"]))]
    keys = {"model", "parameters", "layer_range"}
    sources = [_source(source, name, keys, findings) for source, name in zip(data["sources"], names, strict=True)]
    ranges = [_range(source, name, findings) for source, name in zip(data["sources"], names, strict=True)]
    if None in ranges:
        return None
    if len(set(ranges)) > 1:
        why = "the sources of a slice give different layers; a layer can only be merged with the same layer here."
        findings.refuse(f"{where}.sources", f"layer_range {ranges}", why, NEAREST)
        return None
    start, stop = ranges[0] or (0, 0)
    return _slice(where, start, stop, sources, data.get("parameters") or {}, findings)


def _slice(
    where: str, start: int, stop: int | None, sources: list[Source | None], parameters: Any, findings: Findings
) -> Slice:
    good = tuple(source for source in sources if source is not None)
    for i, source in enumerate(good):
        if any(other.model == source.model for other in good[:i]):
            findings.refuse(source.where, source.model, "this model stands here twice. Give it once.")
    return Slice(where, start, stop, good, parameters)


def _source(data: Any, where: str, known: set[str], findings: Findings) -> Source | None:
    if not isinstance(data, dict) or "model" not in data:
        findings.refuse(where, data, "expected a mapping with model.")
        return None
    _check_known(data, where, known, findings)
    return Source(model_of(data["model"], f"{where}.model", findings), where, data.get("parameters") or {})


def _range(data: Any, where: str, findings: Findings) -> tuple[int, int] | None:
    found = data.get("layer_range") if isinstance(data, dict) else None
    edges = found if isinstance(found, list) and [type(edge) for edge in found] == [int, int] else [0, 0]
    if not 0 <= edges[0] < edges[1]:
        findings.refuse(f"{where}.layer_range", found, "expected two layer numbers, the second one not included.")
        return None
    return edges[0], edges[1]


def _check_known(data: dict[str, Any], where: str, known: set[str], findings: Findings) -> None:
    for key in data.keys() - known:
        findings.refuse(f"{where}.{key}", data[key], f"unknown key.{did_you_mean(str(key), known)}")
