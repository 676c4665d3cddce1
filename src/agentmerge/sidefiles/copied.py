"""The small files beside the weights: copied byte for byte, the config's dtype set true. Knows no methods."""

from __future__ import annotations

import json
import re
from typing import TYPE_CHECKING, Any

from agentmerge.errors import SourceError

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping
    from pathlib import Path

WEIGHTS = (
    ".safetensors",
    ".bin",
    ".pt",
    ".pth",
    ".ckpt",
    ".gguf",
    ".h5",
    ".msgpack",
    ".onnx",
    ".npz",
    ".pkl",
)
NOT_COPIED = {"README.md", "merge_record.json", "adapter_config.json"}
"""An adapter_config.json makes transformers look for an adapter's weights."""
QUANTISED = {"hf_quant_config.json", "quantize_config.json", "quant_config.json"}
"""What engines read of a quantisation that the output does not have."""
INDEX = re.compile(r"\.(?:safetensors|bin|h5|msgpack|pt|pth)\.index\b.*\.json$")
TRAINING = (
    "optimizer", "scheduler", "trainer_state", "training_args", "rng_state", "events.out", "zero_to_fp32",
    "global_step",
)  # fmt: skip
TOKENIZER = (
    "tokenizer", "tokenization_", "vocab.", "merges.txt", "special_tokens_map", "added_tokens", "chat_template",
    "spiece.", "sentencepiece", "tekken.json",
)  # fmt: skip
LARGEST = 256 << 20  # bytes; a side file beyond this is weights under another name
BOTH = ("tie_word_embeddings",)
"""transformers reads it of the whole config, vLLM of the language model's part."""
DTYPE_NAMES = {"F64": "float64", "F32": "float32", "F16": "float16", "BF16": "bfloat16"}


KNOWN = ("config.json", "generation_config.json", "preprocessor_config.json", "processor_config.json")
"""What is copied beside the tokenizer's files from a folder that may hold anything."""


def side_files(base: Path, tokenizer: Path | None = None, *, known_only: bool = False) -> dict[str, bytes]:
    """Every side file of the base by its relative path; the tokenizer's from another folder where one is given.

    Weights and their indices, training state, adapters, quantisation, hidden files, README.md and earlier merge records
    stay behind.

    Args:
        base: the base's folder.
        tokenizer: the folder whose tokenizer is taken; None takes the base's.
        known_only: the base is a single file, and what lies beside it may be anybody's: take only well-known names.

    Raises:
        SourceError: a file can't be read.
    """
    found = _beside(base) if known_only else _walk(base)
    files = {name: path for name, path in found if tokenizer is None or not is_tokenizer(name)}
    if tokenizer is not None:
        files |= {name: path for name, path in _walk(tokenizer) if is_tokenizer(name)}
    return {name: _read(path) for name, path in sorted(files.items())}


def _beside(folder: Path) -> Iterator[tuple[str, Path]]:
    """The well-known files of a folder itself; nothing below it is looked at."""
    for path in sorted(folder.iterdir()):
        if (path.name in KNOWN or is_tokenizer(path.name)) and path.is_file() and path.suffix not in WEIGHTS:
            yield path.name, path


def is_tokenizer(name: str) -> bool:
    """Whether a relative path belongs to the tokenizer or its chat template."""
    return name.rpartition("/")[2].startswith(TOKENIZER) or name.startswith("additional_chat_templates/")


def has_tokenizer(folder: Path) -> bool:
    """Whether any file of a tokenizer lies in a folder."""
    return any(is_tokenizer(path.name) for path in folder.iterdir())


def read_config(folder: Path) -> dict[str, Any]:
    """config.json as a mapping; {} when there is none.

    Raises:
        SourceError: it is no JSON object.
    """
    path = folder / "config.json"
    if not path.exists():
        return {}
    try:
        config = json.loads(_read(path))
    except (ValueError, RecursionError) as error:
        raise SourceError(f"{path}: not valid JSON: {error}. Fetch the file again.") from None
    if not isinstance(config, dict):
        raise SourceError(f"{path}: expected a JSON object, found {type(config).__name__}. Fetch the file again.")
    return config


def true_dtype(elements: Mapping[str, int]) -> str | None:
    """The config's word for the dtype that most elements have; None when no tensor is of a float dtype.

    Args:
        elements: safetensors dtype to number of elements.
    """
    floats = {dtype: count for dtype, count in elements.items() if dtype in DTYPE_NAMES}
    return DTYPE_NAMES[max(sorted(floats), key=floats.__getitem__)] if floats else None


def output_config(config: bytes, dtype: str, changes: Mapping[str, Any]) -> bytes:
    """config.json with `dtype` in both spellings, in nested sections where they name one, and with other changes.

    transformers reads `dtype` since version 4.56 and `torch_dtype` before; vLLM and SGLang read either. A config that
    says all of it already is returned byte for byte.

    Args:
        config: the base's.
        dtype: in the config's spelling.
        changes: key to value, None to take the key out; set in text_config too where that has the key, and in both
            for a key of BOTH.
    """
    data = json.loads(config)
    changed = _set_dtype(data, dtype) | _set_keys(data, changes)
    for key in ("dtype", "torch_dtype"):
        changed |= data.get(key) != dtype
        data[key] = dtype
    return (json.dumps(data, indent=2, ensure_ascii=False) + "\n").encode() if changed else config


def _set_dtype(section: Any, dtype: str) -> bool:
    changed = False
    for key, value in section.items():
        if key in ("dtype", "torch_dtype") and isinstance(value, str) and value != dtype:
            section[key], changed = dtype, True
        elif isinstance(value, dict) and key.endswith("_config") and key != "quantization_config":
            changed |= _set_dtype(value, dtype)
    return changed


def _set_keys(data: dict[str, Any], changes: Mapping[str, Any]) -> bool:
    before = json.dumps(data)
    text = data.get("text_config")
    for key, value in changes.items():
        inside = [section for section in (text,) if isinstance(section, dict) and (key in section or key in BOTH)]
        for section in inside if inside and key not in data and key not in BOTH else [*inside, data]:
            if value is None:
                section.pop(key, None)
            else:
                section[key] = value
    return json.dumps(data) != before


def _walk(folder: Path, prefix: str = "") -> Iterator[tuple[str, Path]]:
    for path in sorted(folder.iterdir()):
        name = prefix + path.name
        if path.name.startswith((".", *TRAINING)) or name in NOT_COPIED | QUANTISED or INDEX.search(path.name):
            continue
        if path.is_dir() and not path.is_symlink() and not _holds_weights(path):
            yield from _walk(path, f"{name}/")
        elif path.is_file() and path.suffix not in WEIGHTS and path.stat().st_size <= LARGEST:
            yield name, path


def _holds_weights(folder: Path) -> bool:
    """Other checkpoints, adapters, optimiser states: a folder with weights somewhere in it is none of the model's."""
    return any(path.suffix in WEIGHTS for path in folder.rglob("*"))


def _read(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError as error:
        raise SourceError(f"{path}: can't be read: {error}.") from error
