"""Tiny checkpoints on disk: a base, its agents, and whether two of them are the same."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from agentmerge.files.save import save, spec_of
from agentmerge.sources.opening import opened
from agentmerge.synth.numbers import densities_by_name
from agentmerge.tensors import DTYPES, MERGEABLE, Array, Block
from agentmerge.testing.stacks import assert_same_bits

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path

CONFIG: dict[str, Any] = {
    "architectures": ["TinyForCausalLM"],
    "model_type": "tiny",
    "tie_word_embeddings": False,
    "torch_dtype": "bfloat16",
}
"""config.json of a tiny checkpoint, unless another is given."""

SHAPES: dict[str, tuple[int, ...]] = {
    "model.embed_tokens.weight": (97, 53),
    "model.layers.0.mlp.up_proj.weight": (67, 131),
    "model.layers.0.self_attn.q_proj.weight": (64, 63),
    "model.norm.weight": (53,),
    "lm_head.weight": (97, 53),
}
"""Tensors of a tiny checkpoint: odd sizes, some of several blocks of 4,096 bytes."""

_ONE_STEP = {"BF16": 1, "F16": 1, "F32": 1 << 16, "F64": 1 << 45}
"""A change of about one bfloat16 step (one float16 step for F16), in the integer that holds the bits."""


def write_checkpoint(
    folder: Path,
    tensors: Mapping[str, Array],
    *,
    config: Mapping[str, Any] | None = None,
    files: Mapping[str, bytes] | None = None,
    shard_size: int = 5_000_000_000,
) -> Path:
    """Write a checkpoint: config.json and one safetensors file, or shards and their index.

    Args:
        folder: made, with its parents, when it is not there.
        tensors: by name, in the order in which they shall be stored.
        config: content of config.json; CONFIG when None, no file when {}.
        files: further files by their relative path.
        shard_size: bytes of data in a shard.

    Returns:
        The folder.
    """
    save(folder, tensors, shard_size=shard_size)
    contents: dict[str, bytes] = dict(files or {})
    if config is None or config:
        contents["config.json"] = json.dumps(CONFIG if config is None else config, indent=1).encode()
    for name, content in contents.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_bytes(content)
    return folder


def read_checkpoint(source: Path) -> dict[str, Array]:
    """Every tensor of a checkpoint by name, in its stored dtype and shape."""
    with opened(None, str(source)) as checkpoint:
        return {
            name: checkpoint.weights.read(Block(spec, 0, spec.elements)).reshape(spec.shape)
            for name, spec in checkpoint.specs.items()
        }


@dataclass(frozen=True, slots=True)
class Sources:
    """A base and its agents on disk."""

    base: Path
    agents: Mapping[str, Path]

    def recipe(self, method: Any, **sections: Any) -> dict[str, Any]:
        """A recipe over these sources as plain data: `recipe("ram_plus", output={"dtype": "float32"})`."""
        agents = {name: str(path) for name, path in self.agents.items()}
        return {"base": str(self.base), "agents": agents, "method": method, **sections}


def make_agents(
    folder: Path,
    *,
    agents: int = 3,
    seed: int = 0,
    base: Mapping[str, Array] | None = None,
    densities: Sequence[float] | None = None,
    config: Mapping[str, Any] | None = None,
    shard_size: int = 5_000_000_000,
) -> Sources:
    """Write a small base and agents that changed some of its elements by 1 to 3 bfloat16 steps.

    Args:
        folder: gets `base` and a folder per agent: code, tool, memory, agent4, agent5 ...
        agents: how many.
        seed: of the numbers.
        base: tensors of the base; bfloat16 in SHAPES when None. Only float tensors are changed.
        densities: changed fraction of every agent; the paper's 0.032, 0.462, 0.543 when None.
        config: content of every config.json, as for `write_checkpoint`.
        shard_size: bytes of data in a shard.
    """
    tensors = random_base(seed) if base is None else base
    rng = np.random.default_rng(seed + 1)
    root = write_checkpoint(folder / "base", tensors, config=config, shard_size=shard_size)
    paths = {}
    for name, density in densities_by_name(agents, densities).items():
        trained = {tensor: _stepped(array, density, rng) for tensor, array in tensors.items()}
        paths[name] = write_checkpoint(folder / name, trained, config=config, shard_size=shard_size)
    return Sources(root, paths)


def random_base(
    seed: int, shapes: Mapping[str, tuple[int, ...]] = SHAPES, dtypes: Mapping[str, str] | None = None
) -> dict[str, Array]:
    """Tensors of standard deviation 0.02, the usual one of weights; BF16 where `dtypes` names no other."""
    rng, dtypes = np.random.default_rng(seed), dtypes or {}
    return {
        name: (0.02 * rng.standard_normal(shape)).astype(DTYPES[dtypes.get(name, "BF16")])
        for name, shape in shapes.items()
    }


def _stepped(array: Array, density: float, rng: np.random.Generator) -> Array:
    """A copy, a share of its elements one to three steps larger in magnitude."""
    dtype = spec_of("", array).dtype
    if dtype not in MERGEABLE:
        return array.copy()
    steps = np.where(rng.random(array.shape) < density, rng.integers(1, 4, array.shape), 0) * _ONE_STEP[dtype]
    bits = np.asarray(array).view(f"u{array.dtype.itemsize}")
    moved: Array = (bits + steps.astype(bits.dtype)).view(array.dtype)
    return moved


def assert_same_tensors(found: Mapping[str, Array], expected: Mapping[str, Array], what: str = "checkpoint") -> None:
    """Raise AssertionError unless two checkpoints hold the same tensors in the same order, bit for bit."""
    if list(found) != list(expected):
        raise AssertionError(f"{what}: tensors {list(found)}, expected {list(expected)}")
    for name, array in found.items():
        assert_same_bits(array, expected[name], f"{what}: {name}")
