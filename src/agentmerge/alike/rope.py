"""The rotary embedding of a config in one spelling, whichever version of transformers wrote it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from agentmerge.sources.language import SPELLINGS, setting

if TYPE_CHECKING:
    from collections.abc import Mapping

IGNORED = ("type", "rope_type", *SPELLINGS["rope_theta"], *SPELLINGS["partial_rotary_factor"][1:])
"""Spelt out under one name each."""
UNNAMED = ("theta", "original_max_position_embeddings")
"""What an older config leaves to the architecture's default."""
BESIDE = (
    "rope_ratio", "rotary_dim", "rope_interleave", "rope_interleaved", "rotary_emb_interleaved", "use_dynamic_ntk",
    "use_logn_attn", "no_rope_layers", "no_rope_layer_interval", "position_embedding_type", "alibi", "rope_factor",
    "rotary_scaling_factor", "rotary_emb_scale_base",
)  # fmt: skip
"""What some models keep beside the base frequency; where one leaves it out, its code's default is not known here."""
OF_DEFAULT = ("mrope_section", "mrope_interleaved", "partial_rotary_factor", *BESIDE)
"""What counts even where the frequencies are not scaled."""


def rope(config: Mapping[str, Any]) -> dict[str, dict[str, Any]]:
    """Base frequency, kind and factors, by kind of layer ("" where all are alike), of a `language_model`.

    Three spellings: rope_theta and rope_scaling; rope_parameters (transformers 5), all layers alike; rope_parameters
    by kind of layer, which older configs of Gemma 3 spell rope_theta and rope_local_base_freq.
    """
    parameters = config.get("rope_parameters")
    parameters = parameters if isinstance(parameters, dict) else {}
    if parameters and all(isinstance(item, dict) for item in parameters.values()):
        return {kind: _one(item, config) for kind, item in parameters.items()}
    scaling = config.get("rope_scaling")
    merged = {**(scaling if isinstance(scaling, dict) else {}), **parameters}
    if config.get("rope_local_base_freq") is not None:
        local = _one({"rope_theta": config["rope_local_base_freq"]}, {})
        return {"full_attention": _one(merged, config), "sliding_attention": local}
    return {"": _one(merged, config)}


def same_rope(ours: Mapping[str, Mapping[str, Any]], theirs: Mapping[str, Mapping[str, Any]]) -> bool:
    """Whether two ropes are the same; what one leaves unnamed (see UNNAMED, kinds of layer) is no difference."""
    if ours.keys() != theirs.keys():
        plain = next((one[""] for one in (ours, theirs) if one.keys() == {""}), None)
        by_kind = ours if "" not in ours else theirs
        return plain is not None and "full_attention" in by_kind and _same(plain, by_kind["full_attention"])
    return all(_same(mine, theirs[kind]) for kind, mine in ours.items())


def rope_in_words(found: Mapping[str, Mapping[str, Any]]) -> str:
    """For a message."""
    parts = []
    for kind, one in found.items():
        text = ", ".join(f"{key} {item}" for key, item in one.items() if item is not None)
        parts.append(f"{kind}: {text}" if kind else text)
    return "; ".join(parts)


def _same(ours: Mapping[str, Any], theirs: Mapping[str, Any]) -> bool:
    unnamed = {key for key in (*UNNAMED, *BESIDE) if ours.get(key) is None or theirs.get(key) is None}
    return {k: v for k, v in ours.items() if k not in unnamed} == {k: v for k, v in theirs.items() if k not in unnamed}


def _one(section: Mapping[str, Any], config: Mapping[str, Any]) -> dict[str, Any]:
    theta = setting(section, "rope_theta")
    theta = setting(config, "rope_theta") if theta is None else theta
    kind = section.get("rope_type", section.get("type")) or "default"
    kind = "default" if kind == "mrope" else kind
    beside = ("partial_rotary_factor", "original_max_position_embeddings", *BESIDE)
    whole = {**{key: config.get(key) for key in beside}, **section}
    whole["partial_rotary_factor"] = setting(whole, "partial_rotary_factor")
    counted = {
        key: _number(value)
        for key, value in sorted(whole.items())
        if key not in IGNORED and value is not None and (kind != "default" or key in OF_DEFAULT)
    }
    return {"theta": _number(theta), "type": kind, **counted}


def _number(value: Any) -> Any:
    return float(value) if isinstance(value, int | float) and not isinstance(value, bool) else value
