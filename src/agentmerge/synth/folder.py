"""A synthetic checkpoint's folder: its empty shards and the files beside them. Knows no numbers."""

from __future__ import annotations

import json
import os
from typing import TYPE_CHECKING

from agentmerge.files.layout import index_json
from agentmerge.files.positional import preallocate, write_from

if TYPE_CHECKING:
    from pathlib import Path

    from agentmerge.files.layout import Layout
    from agentmerge.synth.configs import Json
    from agentmerge.synth.shapes import Shape

_README = """# Synthetic {role} in the shape of {shape}

Random numbers, not a model: `agentmerge synth` wrote this folder so that merging can be tried at full size
without a download. The configs are those of {shape}; the weights mean nothing, and there is no tokenizer.

- {what}
- Seed: {seed}. The same seed gives the same numbers again.
"""
_BASE = "Weights: bfloat16, normal, standard deviation 0.02; norm weights around 1."
_AGENT = """Weights: those of `../base`, a share of {density} of them moved by 1 to 3 bfloat16 steps.
- About 6 % of these moves, on weights near zero, are under the default threshold of 1e-5: `agentmerge probe`
  shows a density that much lower."""


def open_folder(folder: Path, layout: Layout, shape: Shape, seed: int, density: float | None) -> None:
    """Make the folder with everything but the tensors' data: headers, index, configs, README.

    Args:
        folder: must not exist.
        layout: of the shards.
        shape: whose configs to write.
        seed: of the numbers, for the README.
        density: share of the elements that the agent changes; None for the base.

    Raises:
        OSError: the disk can't hold it.
    """
    folder.mkdir()
    for shard in layout.shards:
        _reserve(folder / shard.name, shard.header, shard.size)
    index = index_json(layout)
    if index is not None:
        (folder / "model.safetensors.index.json").write_bytes(index)
    (folder / "config.json").write_text(_json(shape.config))
    (folder / "generation_config.json").write_text(_json(shape.generation))
    role, what = ("base", _BASE) if density is None else ("agent", _AGENT.format(density=density))
    (folder / "README.md").write_text(_README.format(role=role, shape=shape.name, what=what, seed=seed))


def _reserve(path: Path, header: bytes, size: int) -> None:
    fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o666)
    try:
        preallocate(fd, size)
        write_from(fd, header, 0)
    finally:
        os.close(fd)


def _json(content: Json) -> str:
    return json.dumps(content, indent=2, sort_keys=True) + "\n"
