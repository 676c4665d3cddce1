"""Which files beside the weights go on into the output, byte for byte."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from agentmerge.files.documents import read_bytes
from agentmerge.sources.beside import is_tokenizer

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

WEIGHTS = (
    ".safetensors", ".bin", ".pt", ".pth", ".ckpt", ".gguf", ".h5", ".msgpack", ".onnx", ".npz", ".pkl",
)  # fmt: skip
NOT_COPIED = {"README.md", "merge_record.json", "adapter_config.json"}
"""An adapter_config.json makes transformers look for an adapter's weights."""
QUANTISED = {"hf_quant_config.json", "quantize_config.json", "quant_config.json"}
"""What engines read of a quantisation that the output does not have."""
INDEX = re.compile(r"\.(?:safetensors|bin|h5|msgpack|pt|pth)\.index\b.*\.json$")
TRAINING = (
    "optimizer", "scheduler", "trainer_state", "training_args", "rng_state", "events.out", "zero_to_fp32",
    "global_step",
)  # fmt: skip
LARGEST = 256 << 20  # bytes; a side file beyond this is weights under another name
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
    return {name: read_bytes(path) for name, path in sorted(files.items())}


def _beside(folder: Path) -> Iterator[tuple[str, Path]]:
    """The well-known files of a folder itself; nothing below it is looked at."""
    for path in sorted(folder.iterdir()):
        if (path.name in KNOWN or is_tokenizer(path.name)) and path.is_file() and path.suffix not in WEIGHTS:
            yield path.name, path


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
