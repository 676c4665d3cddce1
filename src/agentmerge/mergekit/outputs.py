"""The recipe's sections `seed`, `inputs` and `output`: how the result is stored, and whose tokenizer it gets."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from agentmerge.mergekit.local import dtypes_of
from agentmerge.mergekit.models import read_model
from agentmerge.recipe import OUTPUT_DTYPES

if TYPE_CHECKING:
    from collections.abc import Mapping

    from agentmerge.mergekit.config import MergekitConfig
    from agentmerge.mergekit.parameters import Problems

NEAREST_TOKENIZER = "tokenizer_source: base, or one of the models"
UNION = (
    "union is left out: embeddings are merged row by row, and the tokenizer is the base's. `check` and `merge` compare "
    "the vocabularies and stop where they differ; where they are equal, the union is the base's"
)
TEMPLATE = (
    "left out, as it changes no weight: the result has the chat template that goes with its tokenizer "
    "(inputs.tokenizer_from). For another one, edit the result's chat_template.jinja, or the chat_template of "
    "tokenizer_config.json in older folders"
)
PROMOTES = "ramplus_tl"
"""The method whose result mergekit does not store in `dtype`: its lambda is float32, and so are its tensors."""


def read_outputs(
    data: Mapping[str, Any], config: MergekitConfig | None, names: Mapping[str, str], problems: Problems
) -> dict[str, Any]:
    """The sections, where they say something.

    Args:
        data: what the YAML holds.
        config: the same, read; None where it is not whole.
        names: of the agents, by model.
        problems: gets what is refused and what is worth a note.
    """
    sections: dict[str, Any] = {}
    if (seed := _seed(data, problems)) is not None:
        sections["seed"] = seed
    if (template := data.get("chat_template")) is not None:
        shown = template if isinstance(template, str) and len(template) < 20 else "a text"
        problems.note(f"chat_template: {shown} is {TEMPLATE}")
    tokenizer = _tokenizer(data, config, names, problems)
    if tokenizer is not None:
        sections["inputs"] = {"tokenizer_from": tokenizer}
    dtype = _dtype(data, config, problems)
    if dtype is not None:
        sections["output"] = {"dtype": dtype}
    return sections


def _seed(data: Mapping[str, Any], problems: Problems) -> int | None:
    key = "random_seed" if data.get("random_seed") is not None else "seed"
    seed = data.get(key)
    if seed is None:
        return None
    if type(seed) is not int or not 0 <= seed < 2**64:
        problems.note(f"{key}: left out, as mergekit ignores it in a file")
        return None
    problems.note(f"{key}: taken for `seed`; mergekit ignores it in a file, its option is --random-seed")
    return seed


def _dtype(data: Mapping[str, Any], config: MergekitConfig | None, problems: Problems) -> str | None:
    for key in ("dtype", "out_dtype"):
        if data.get(key) is not None and data[key] not in OUTPUT_DTYPES:
            problems.refuse(key, data[key], expected=f"one of {', '.join(OUTPUT_DTYPES)}")
    dtype, out = data.get("dtype"), data.get("out_dtype")
    if config is not None:
        _note_dtype(dtype, out, config, problems)
    stored = out or dtype
    return None if stored is None else str(stored)


def _note_dtype(dtype: Any, out: Any, config: MergekitConfig, problems: Problems) -> None:
    """What mergekit does otherwise with these dtypes."""
    if out is None and dtype != "float32" and config.method == PROMOTES:
        said = f"is {dtype}" if dtype else "is not said"
        here = dtype or "the base's dtype"
        problems.note(
            f"dtype {said}: mergekit's {PROMOTES} writes float32 all the same, as its lambda is float32; here the "
            f"arithmetic is float32 and the result is stored in {here}. For mergekit's tensors: output.dtype: float32"
        )
    elif dtype in ("bfloat16", "float16"):
        problems.note(f"dtype: mergekit also calculates in {dtype}; here it is the output's, the arithmetic float32")
    elif dtype is not None and out is not None:
        problems.note("dtype: left out; the arithmetic is always float32, and out_dtype says the output's")
    elif dtype is None and out is None:
        _note_mixed(config, problems)


def _note_mixed(config: MergekitConfig, problems: Problems) -> None:
    """Without any dtype mergekit promotes what differs; told where the models can be seen."""
    found = {model: dtypes_of(model) for model in (config.base, *config.models)}
    if len(frozenset().union(*found.values())) < 2:
        return
    shown = ", ".join(f"{model} {'/'.join(sorted(dtypes))}" for model, dtypes in found.items() if dtypes)
    problems.note(
        f"no dtype, and models of several ({shown}): mergekit stores float32 where they meet; here each tensor keeps "
        "the base's dtype. For mergekit's tensors: output.dtype: float32"
    )


def _tokenizer(
    data: Mapping[str, Any], config: MergekitConfig | None, names: Mapping[str, str], problems: Problems
) -> str | None:
    key, source = "tokenizer_source", data.get("tokenizer_source")
    if data.get("tokenizer") is not None:
        key, source = "tokenizer.source", _source_of(data["tokenizer"], data, problems)
    if source is None:
        return None
    if source == "union":
        problems.note(f"{key}: {UNION}")
        return None
    if isinstance(source, str):
        source = source.removeprefix("model:")
    base = None if config is None else config.base
    model = source if source == "base" else read_model(source, key, problems, base)
    if config is None or model is None:
        return None
    if model in ("base", config.base):
        return "base"
    if model not in names:
        problems.refuse(key, model, "it is neither the base nor one of the agents.", nearest=NEAREST_TOKENIZER)
        return None
    return names[model]


def _source_of(tokenizer: Any, data: Mapping[str, Any], problems: Problems) -> Any:
    if not isinstance(tokenizer, dict):
        problems.refuse("tokenizer", tokenizer, expected="a mapping with source")
        return None
    if data.get("tokenizer_source") is not None:
        problems.refuse("tokenizer", tokenizer, "tokenizer_source stands beside it.", todo="Keep one of them.")
    for key, value in tokenizer.items():
        if key != "source" and value not in (None, {}, False):
            why = "embeddings are merged as they are, row by row, and the vocabulary stays the base's."
            problems.refuse(f"tokenizer.{key}", value, why, nearest="leave it out")
    return tokenizer.get("source", "union")
