"""Where a config.json keeps its language model's settings, and the names that they go by. Reads no file.

A text model has them at the top. A multimodal one has them in a section, perhaps within another section, and every
family calls it otherwise: `text_config`, `llm_config`, `thinker_config.text_config`. A key means the same thing at
every level of that path, and the innermost one holds.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping

NAMED = (
    "text_config", "llm_config", "language_config", "language_model_config", "text_model_config", "lm_config",
    "llm_cfg", "thinker_config", "decoder_config", "language_model", "text_model", "text_cfg", "thinker", "llm", "lm",
    "language", "text", "decoder", "model_config", "model", "generator_config",
)  # fmt: skip
"""What the section is called, the surest name first."""
OTHERS = re.compile(
    r"vision|visual|vit|image|video|audio|speech|talker|wav|voice|codec|encoder|project|connector|adapter|draft|assistant"
    r"|mtp|quant|compress|rope|rotary|attn|attention|ffn|generation|lora"
)
"""What is said in the names of sections that hold something else."""
TELLING = ("vocab_size", "padded_vocab_size", "n_vocab")
"""A section of any name that has one of these is a language model's."""
SETTINGS = (
    *TELLING, "hidden_size", "num_hidden_layers", "num_attention_heads", "rope_theta", "rope_scaling",
    "rope_parameters", "max_position_embeddings", "n_layer", "n_layers", "n_head", "n_heads", "n_embd", "d_model",
    "tie_word_embeddings", "model_type", "dtype", "torch_dtype", "num_key_value_heads", "head_dim",
)  # fmt: skip
"""What a section of a language model has at least one of."""
DEEPEST = 4
SPELLINGS: Mapping[str, tuple[str, ...]] = {
    "vocab_size": ("vocab_size", "padded_vocab_size", "n_vocab"),
    "tie_word_embeddings": ("tie_word_embeddings", "tie_embeddings", "tie_lm_head", "weight_tying"),
    "num_attention_heads": (
        "num_attention_heads", "n_head", "n_heads", "num_heads", "attention_heads", "decoder_attention_heads",
        "num_q_heads",
    ),
    "num_key_value_heads": (
        "num_key_value_heads", "num_kv_heads", "n_kv_heads", "n_head_kv", "kv_n_heads", "n_kv_head",
        "num_query_groups", "multi_query_group_num", "num_attention_groups",
    ),
    "head_dim": ("head_dim", "kv_channels", "head_size", "attention_head_size", "attention_head_dim", "d_head", "d_kv"),
    "rope_theta": (
        "rope_theta", "rotary_emb_base", "rope_base", "rotary_base", "rotary_embedding_base", "rope_freq_base",
        "rope_emb_base", "global_rope_theta", "rotary_theta",
    ),
    "rope_local_base_freq": ("rope_local_base_freq", "local_rope_theta", "swa_rope_theta"),
    "partial_rotary_factor": ("partial_rotary_factor", "rotary_pct", "rope_pct", "rotary_percent", "rotary_percentage"),
    "max_position_embeddings": (
        "max_position_embeddings", "n_positions", "seq_length", "n_ctx", "max_seq_len", "max_sequence_length",
        "max_seq_length",
    ),
    "num_hidden_layers": ("num_hidden_layers", "n_layer", "n_layers", "num_layers"),
    "hidden_size": ("hidden_size", "n_embd", "d_model"),
    "intermediate_size": ("intermediate_size", "ffn_hidden_size", "n_inner", "mlp_hidden_size"),
    "layer_norm_eps": ("layer_norm_eps", "layer_norm_epsilon", "layernorm_epsilon"),
}  # fmt: skip
"""A setting's usual name, and all that it is called; see `setting`."""
INNER = ("attn_config", "attention_config", "attention", "rope_config", "rope", "rotary")
"""Sections of a language model that hold its heads and its rope."""


def language_path(config: Mapping[str, Any]) -> tuple[str, ...]:
    """The keys that lead from the top of a config to its language model's section; () where it is the top."""
    path: tuple[str, ...] = ()
    section = config
    while len(path) < DEEPEST and (key := _inner(section)) is not None:
        path, section = (*path, key), section[key]
    return path


def language_sections(config: Mapping[str, Any]) -> list[Any]:
    """The top of a config and every section on the way to its language model's, which is the last; all mappings."""
    sections: list[Any] = [config]
    for key in language_path(config):
        sections.append(sections[-1][key])
    return sections


def language_model(config: Mapping[str, Any]) -> dict[str, Any]:
    """Every setting of the language model, by its usual name too; an inner section's goes before an outer one's."""
    merged: dict[str, Any] = {}
    for section in language_sections(config):
        for inner in (section.get(key) for key in INNER):
            merged |= inner if isinstance(inner, dict) else {}
        merged |= section
    usual = {name: value for name in SPELLINGS if (value := setting(merged, name)) is not None}
    return {**merged, **usual}


def setting(section: Mapping[str, Any], name: str) -> Any:
    """A setting under whatever spelling a section has it; None without one.

    Args:
        section: of a config.
        name: the usual one, a key of SPELLINGS.
    """
    values = (section.get(spelling) for spelling in SPELLINGS.get(name, (name,)))
    return next((value for value in values if value is not None), None)


def nested(config: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
    """A config and every mapping inside it, whatever it is called and however deep it lies; the outer ones first."""
    left: list[Any] = [config]
    for section in left:  # which grows
        if isinstance(section, dict):
            yield section
            left += section.values()
        elif isinstance(section, list):
            left += section


def _inner(section: Mapping[str, Any]) -> str | None:
    """The key of the section that holds the language model; None where this one does."""
    sections = {key: value for key, value in section.items() if isinstance(value, dict) and value}
    for key in NAMED:
        if key in sections and (key == NAMED[0] or _has(sections[key], SETTINGS) or _inner(sections[key])):
            return key
    if _has(section, (*TELLING, "num_hidden_layers", "num_attention_heads")):
        return None
    others = {key: value for key, value in sections.items() if not OTHERS.search(key.lower())}
    like = [key for key, value in others.items() if _has(value, TELLING) or _inner(value) is not None]
    return like[0] if len(like) == 1 else None


def _has(section: Mapping[str, Any], names: Iterable[str]) -> bool:
    return any(section.get(name) is not None for name in names)
