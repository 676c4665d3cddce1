"""The configs, templates and other small files of base and agents compared."""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from agentmerge.alike.model_type import families, refuse_family
from agentmerge.alike.rope import rope, rope_in_words, same_rope
from agentmerge.errors import AlignmentError, MergeError, Note, about, role_of
from agentmerge.files.documents import abbreviated, json_or_nothing, leads_nowhere
from agentmerge.sources.beside import has_vocabulary, is_tokenizer, read_config
from agentmerge.sources.language import language_model, nested

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping
    from pathlib import Path

    from agentmerge.alike.family import Family
    from agentmerge.recipe import Inputs

HEADS = (
    "num_attention_heads", "num_key_value_heads", "head_dim", "multi_query", "multi_query_attention",
    "qk_rope_head_dim", "qk_nope_head_dim", "v_head_dim", "linear_num_key_heads", "linear_num_value_heads",
    "mamba_n_heads",
)  # fmt: skip
"""What the shapes of the weights need not show, and yet makes another model of them."""
ARCHITECTURE = (
    "hidden_size", "intermediate_size", "num_hidden_layers", "hidden_act", "hidden_activation",
    "rms_norm_eps", "layer_norm_eps", "num_experts", "num_local_experts", "n_routed_experts", "num_experts_per_tok",
    "moe_intermediate_size", "norm_topk_prob", "sliding_window", "use_sliding_window", "attention_bias",
    "attn_logit_softcapping", "final_logit_softcapping", "query_pre_attn_scalar", "activation_function",
    "parallel_attention", "use_parallel_residual", "embedding_multiplier", "residual_multiplier", "logits_scaling",
)  # fmt: skip
LENGTHS = ("max_position_embeddings",)
PROCESSORS = ("preprocessor_config.json", "processor_config.json", "video_preprocessor_config.json")
UNLIMITED = 10**12
"""transformers' "no limit" for a tokenizer is a number of 30 digits."""


@dataclass(frozen=True)
class ConfigDifference:
    """One setting of config.json that differs between the base and an agent."""

    kind: str
    """"rope", "heads", "architecture", "length" or "class"."""
    text: str


def compare_configs(family: Family) -> Family:
    """Stop where rope or heads differ; warn of the rest. Such an agent stays in, so that more can be told of it."""
    with about(family.base.where):
        base = read_config(family.base.folder.path)
    if not base:
        text = "has no config.json, so the output will have none and nothing will load it: put the model's there"
        family = family.noted(Note(text, where=family.base.where, named=True))
    family, agents = family.each(lambda _, agent: read_config(agent.folder.path))
    family = replace(family, configs={"base": base, **agents})
    family, _ = family.each(lambda name, agent: refuse_family(base, family.base, agents[name], agent))
    for name in family.agents:
        config, where = agents[name], family.agents[name].where
        for difference in config_differences(name, base, config):
            error = _as_error(difference, family.inputs)
            if error is None:
                family = family.noted(Note(difference.text, where=where))
            else:
                family = family.failed(error.located(where))
    return family


def compare_side_files(family: Family) -> Family:
    """Notes of what the small files of an agent say otherwise than the output's will."""
    base, donor, notes = family.ground.folder.path, family.tokenizer_from, []
    if donor in family.folders:  # a check goes on without a donor that is not there
        for name, agent in family.agents.items():
            found = file_differences(name, base, agent.folder.path, donor, family.folders[donor])
            notes += [Note(text, where=agent.where) for text in found]
    notes += _without_tokenizer(family)
    for agent in family.agents.values():
        lost = [path.name for path in _compared(agent.folder.path) if leads_nowhere(path)]
        text = f"{', '.join(lost)}: links whose targets are not there, so not compared"
        notes += [Note(text, where=agent.where, named=True)] if lost else []
    config = family.configs["base" if family.onto is None else "onto"]
    if lacking := missing_code(base, config):
        text = (
            f"config.json needs {', '.join(lacking)} (auto_map), which {base} lacks: the output won't load "
            "before you put it there"
        )
        notes.append(Note(text, where=family.ground.where, named=True))
    return family.noted(*notes)


def config_differences(name: str, base: Mapping[str, Any], agent: Mapping[str, Any]) -> list[ConfigDifference]:
    """What an agent's config.json says otherwise than the base's; nothing where either has none.

    Args:
        name: of the agent.
        base: its config.
        agent: its config.
    """
    if not base or not agent:
        return []
    ours, theirs = language_model(base), language_model(agent)
    found = [*_class(name, base, agent)]
    if not same_rope(rope(ours), rope(theirs)):
        text = f"{role_of(name)} has rope {rope_in_words(rope(theirs))}, base has {rope_in_words(rope(ours))}"
        found.append(ConfigDifference("rope", text))
    kinds = families(base, agent)
    if all(kinds) and kinds[0] != kinds[1]:
        found.append(
            ConfigDifference("architecture", f"{role_of(name)} has model_type {kinds[1]}, base has {kinds[0]}")
        )
    for kind, keys in (("heads", HEADS), ("architecture", ARCHITECTURE), ("length", LENGTHS)):
        for key in keys:
            if ours.get(key) is not None and theirs.get(key) is not None and ours[key] != theirs[key]:
                text = f"{role_of(name)} has {key} {abbreviated(theirs[key])}, base has {abbreviated(ours[key])}"
                found.append(ConfigDifference(kind, text))
    return found


def _compared(folder: Path) -> list[Path]:
    """The files of an agent that are compared with the output's."""
    names = ("generation_config.json", *PROCESSORS)
    return sorted(path for path in folder.iterdir() if path.name in names or is_tokenizer(path.name))


def _without_tokenizer(family: Family) -> list[Note]:
    """A note where the output will have no tokenizer although agents have one."""
    base, agents = family.base, family.agents
    having = [name for name, agent in agents.items() if has_vocabulary(agent.folder.path)]
    if family.tokenizer_from != "base" or not having or has_vocabulary(base.folder.path):
        return []
    text = (
        f"has no tokenizer, and agents have ({', '.join(having)}): the output will have none (inputs.tokenizer_from: "
        f"{having[0]} takes that of agent '{having[0]}')"
    )
    return [Note(text, where=base.where, named=True)]


def file_differences(name: str, base: Path, agent: Path, donor: str, tokenizer: Path) -> list[str]:
    """What the small files of an agent say otherwise than the output's will.

    Args:
        name: of the agent.
        base: folder of the base, whose files the output has.
        agent: folder of the agent.
        donor: whose tokenizer and template the output has: "base" or an agent's name.
        tokenizer: folder of the donor.
    """
    return [
        *_template(name, agent, donor, tokenizer),
        *_length(name, agent, donor, tokenizer),
        *_stops(name, base, agent),
        *_processors(name, base, agent),
    ]


def chat_templates(folder: Path) -> dict[str, str]:
    """The templates by name, the usual one as "default", wherever a folder keeps them; {} without one.

    As transformers reads them: chat_template.jinja and additional_chat_templates/, else chat_template.json, else
    tokenizer_config.json.
    """
    jinja = folder / "chat_template.jinja"
    if jinja.exists():
        more = sorted((folder / "additional_chat_templates").glob("*.jinja"))
        return {"default": _text(jinja)} | {path.stem: _text(path) for path in more}
    for file in ("chat_template.json", "tokenizer_config.json"):
        found = json_or_nothing(folder / file).get("chat_template")
        if isinstance(found, str):
            return {"default": found.strip()}
        if isinstance(found, dict):
            return {str(key): str(value).strip() for key, value in found.items()}
        if isinstance(found, list):
            named = [item for item in found if isinstance(item, dict)]
            return {str(item.get("name")): str(item.get("template")).strip() for item in named}
    return {}


def architectures(config: Mapping[str, Any]) -> list[str]:
    """The classes that a config names, without what FSDP puts before them; [] where it names none."""
    found = config.get("architectures")
    names = found if isinstance(found, list) else [found]
    return sorted(name.removeprefix("FSDP") for name in names if isinstance(name, str))


def missing_code(folder: Path, config: Mapping[str, Any]) -> list[str]:
    """The files of remote code that auto_map names and the folder lacks; code of other repositories aside."""
    maps = [section["auto_map"] for section in nested(config) if isinstance(section.get("auto_map"), dict)]
    values = [str(v) for one in maps for of in one.values() for v in (of if isinstance(of, list) else [of])]
    files = {f"{value.partition('.')[0]}.py" for value in values if "--" not in value and re.match(r"\w+\.\w+", value)}
    return sorted(file for file in files if not (folder / file).exists())


def _class(name: str, base: Mapping[str, Any], agent: Mapping[str, Any]) -> Iterator[ConfigDifference]:
    """Another class: a reward model or a classifier is not the policy that was trained, though most shapes agree."""
    ours, theirs = architectures(base), architectures(agent)
    if ours and theirs and ours != theirs:
        scores = any(re.search(r"Classification|Reward|Value|Critic|Score|Regression", each) for each in theirs)
        is_it = ": a reward model or classifier? Give the policy's checkpoint" if scores else ""
        text = f"{role_of(name)} has architectures {', '.join(theirs)}, base has {', '.join(ours)}{is_it}"
        yield ConfigDifference("class", text)


def _template(name: str, agent: Path, donor: str, tokenizer: Path) -> Iterator[str]:
    ours, theirs = chat_templates(tokenizer), chat_templates(agent)
    take = f"(inputs.tokenizer_from: {name} takes its tokenizer and template)"
    who = "the base" if donor == "base" else str(role_of(donor))
    if not theirs or ours == theirs:
        return
    if not ours:
        yield f"agent '{name}' has a chat template and {who} has none: the output will have none {take}"
        return
    yield f"agent '{name}' has another chat template than {who}; the output has that of {who} {take}"


def _length(name: str, agent: Path, donor: str, tokenizer: Path) -> Iterator[str]:
    files = (folder / "tokenizer_config.json" for folder in (tokenizer, agent))
    ours, theirs = (json_or_nothing(file).get("model_max_length") for file in files)
    if not isinstance(ours, int | float) or not isinstance(theirs, int | float) or min(ours, theirs) > UNLIMITED:
        return
    if ours != theirs:
        who = "base" if donor == "base" else str(role_of(donor))
        yield f"agent '{name}' has model_max_length {theirs} in its tokenizer_config.json, {who} has {ours}"


def _stops(name: str, base: Path, agent: Path) -> Iterator[str]:
    ours, theirs = stop_ids(base), stop_ids(agent)
    if ours is not None and theirs is not None and ours != theirs:
        yield (
            f"agent '{name}' stops at the tokens {sorted(theirs)}, the base at {sorted(ours)}, as the output will: if "
            "its answers do not end, put the agent's into the output's generation_config.json"
        )


def stop_ids(folder: Path) -> frozenset[int] | None:
    """The ids at which generation ends, one or several; None where no file says."""
    for file in ("generation_config.json", "config.json"):
        found = json_or_nothing(folder / file).get("eos_token_id")
        ids = found if isinstance(found, list) else [found]
        if found is not None and all(isinstance(i, int) for i in ids):
            return frozenset(ids)
    return None


def _processors(name: str, base: Path, agent: Path) -> Iterator[str]:
    for file in PROCESSORS:
        if (base / file).exists() and (agent / file).exists():
            ours, theirs = json_or_nothing(base / file), json_or_nothing(agent / file)
            keys = sorted(key for key in ours.keys() & theirs.keys() if ours[key] != theirs[key])
            if keys:
                yield f"agent '{name}' has another {file} ({', '.join(keys[:5])}); the output has the base's"


def _text(path: Path) -> str:
    return path.read_text(encoding="utf-8", errors="replace").strip()


def _as_error(difference: ConfigDifference, inputs: Inputs) -> MergeError | None:
    if difference.kind == "rope" and inputs.rope == "error":
        return AlignmentError(
            f"{difference.text};",
            expected="the same",
            todo="Their weights expect other positions: set inputs.rope: base (--rope base) to merge them all the same "
            "under the base's.",
        )
    if difference.kind == "heads":
        return AlignmentError(
            f"{difference.text};",
            expected="the same, or it is not an agent of this base",
            todo="Correct its config.json where that is wrong; where it is right, the agent is another model.",
        )
    return None
