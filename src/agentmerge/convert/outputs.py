"""The dtype and the tokenizer of the result. Knows no tensors."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from agentmerge.recipe import OUTPUT_DTYPES

if TYPE_CHECKING:
    from collections.abc import Mapping

    from agentmerge.convert.config import MergekitConfig
    from agentmerge.convert.findings import Findings


def read_outputs(
    data: Mapping[str, Any], config: MergekitConfig, names: Mapping[str, str], findings: Findings
) -> dict[str, Any]:
    """The sections `inputs` and `output`, where they say something."""
    sections: dict[str, Any] = {}
    tokenizer = _tokenizer(data, config, names, findings)
    if tokenizer is not None:
        sections["inputs"] = {"tokenizer_from": tokenizer}
    dtype = _dtype(data, findings)
    if dtype is not None:
        sections["output"] = {"dtype": dtype}
    findings.stop()
    return sections


def _dtype(data: Mapping[str, Any], findings: Findings) -> str | None:
    for key in ("dtype", "out_dtype"):
        if data.get(key) is not None and data[key] not in OUTPUT_DTYPES:
            findings.refuse(key, data[key], f"expected one of {', '.join(OUTPUT_DTYPES)}.")
    if data.get("dtype") in ("bfloat16", "float16"):
        findings.warn(
            f"dtype: mergekit also calculates in {data['dtype']}; here it is the output's, the arithmetic float32"
        )
    elif data.get("dtype") is not None and data.get("out_dtype") is not None:
        findings.warn("dtype: left out; the arithmetic is always float32, and out_dtype says the output's")
    found = data.get("out_dtype") or data.get("dtype")
    return None if found is None else str(found)


def _tokenizer(
    data: Mapping[str, Any], config: MergekitConfig, names: Mapping[str, str], findings: Findings
) -> str | None:
    key, source = "tokenizer_source", data.get("tokenizer_source")
    if data.get("tokenizer") is not None:
        key, source = "tokenizer", _source_of(data["tokenizer"], data, findings)
    if source is None:
        return None
    nearest = "tokenizer_source: base, or one of the models"
    if source == "union":
        findings.refuse(key, source, "vocabularies are not joined here; all agents must have the base's.", nearest)
        return None
    model = source.removeprefix("model:") if isinstance(source, str) else source
    if model == "base" or model == config.base:
        return "base"
    if model not in names:
        findings.refuse(key, source, "it is neither the base nor one of the agents.", nearest)
        return None
    return names[model]


def _source_of(tokenizer: Any, data: Mapping[str, Any], findings: Findings) -> Any:
    if not isinstance(tokenizer, dict):
        findings.refuse("tokenizer", tokenizer, "expected a mapping with source.")
        return None
    if data.get("tokenizer_source") is not None:
        findings.refuse("tokenizer", tokenizer, "tokenizer_source stands beside it. Keep one of them.")
    for key, value in tokenizer.items():
        if key != "source" and value not in (None, {}, False):
            why = "embeddings are merged as they are, row by row, and the vocabulary stays the base's."
            findings.refuse(f"tokenizer.{key}", value, why, "leave it out")
    return tokenizer.get("source", "union")
