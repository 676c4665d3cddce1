"""Compare the configs, templates and context lengths of base and agents. Knows no tensors."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

ARCHITECTURE = (
    "model_type", "hidden_size", "intermediate_size", "num_hidden_layers", "num_attention_heads",
    "num_key_value_heads", "head_dim", "hidden_act", "rms_norm_eps", "num_experts", "num_experts_per_tok",
    "n_routed_experts", "sliding_window", "use_sliding_window", "attention_bias", "final_logit_softcapping",
)  # fmt: skip
LENGTHS = ("max_position_embeddings", "model_max_length")
ROPE_SCALING = ("factor", "low_freq_factor", "high_freq_factor", "original_max_position_embeddings", "mrope_section")


@dataclass(frozen=True)
class Difference:
    """One setting that differs between the base and an agent."""

    kind: str
    """"rope", "architecture", "length" or "template"."""
    text: str


def config_differences(name: str, base: Mapping[str, Any], agent: Mapping[str, Any]) -> list[Difference]:
    """What an agent's config.json says otherwise than the base's; nothing where either has none.

    Args:
        name: of the agent.
        base: its config.
        agent: its config.
    """
    if not base or not agent:
        return []
    ours, theirs = text_section(base), text_section(agent)
    found = []
    if rope(ours) != rope(theirs):
        found.append(
            Difference("rope", f"agent '{name}' has rope {_shown(rope(theirs))}, base has {_shown(rope(ours))}")
        )
    for kind, keys in (("architecture", ARCHITECTURE), ("length", LENGTHS)):
        for key in keys:
            if key in ours and key in theirs and ours[key] != theirs[key]:
                text = f"agent '{name}' has {key} {_shown(theirs[key])}, base has {_shown(ours[key])}"
                found.append(Difference(kind, text))
    return found


def template_differences(name: str, base: Path, agent: Path) -> list[Difference]:
    """Whether an agent's chat template is another one, wherever each keeps it; nothing where either has none."""
    ours, theirs = chat_template(base), chat_template(agent)
    if ours is None or theirs is None or ours == theirs:
        return []
    text = f"agent '{name}' has another chat template than the base; the output has the base's"
    return [Difference("template", f"{text} (inputs.tokenizer_from: {name} takes its tokenizer and template)")]


def chat_template(folder: Path) -> Any:
    """The template of chat_template.jinja, chat_template.json or tokenizer_config.json; None without one."""
    import json

    jinja = folder / "chat_template.jinja"
    if jinja.exists():
        return jinja.read_text(encoding="utf-8", errors="replace").strip()
    for name in ("chat_template.json", "tokenizer_config.json"):
        try:
            found = json.loads((folder / name).read_bytes()).get("chat_template")
        except (OSError, ValueError, AttributeError, RecursionError):
            continue
        if found is not None:
            return found.strip() if isinstance(found, str) else found
    return None


def text_section(config: Mapping[str, Any]) -> Mapping[str, Any]:
    """The language model's part of a config."""
    text = config.get("text_config")
    return {**config, **text} if isinstance(text, dict) else config


def rope(config: Mapping[str, Any]) -> dict[str, Any]:
    """Base frequency, kind and factors of the rotary embedding, in whichever spelling; {} where none is named."""
    parameters = config.get("rope_parameters") or {}
    scaling = config.get("rope_scaling") or {}
    together = {**scaling, **parameters}
    theta = parameters.get("rope_theta", config.get("rope_theta"))
    kind = together.get("rope_type", together.get("type", "default"))
    found = {key: together[key] for key in ROPE_SCALING if together.get(key) is not None}
    kind = "default" if kind == "mrope" else kind
    return {"theta": None if theta is None else float(theta), "type": kind, **found}


def _shown(value: Any) -> str:
    if isinstance(value, dict):
        return ", ".join(f"{key} {item}" for key, item in value.items() if item is not None)
    return str(value)
