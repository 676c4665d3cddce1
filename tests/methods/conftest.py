"""What several tests of methods need: recipes over the golden numbers, stacks by hand, both ways to the bytes."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

from agentmerge import kernels
from agentmerge.files.save import save
from agentmerge.tensors import Block, Stack, TensorSpec, as_float32
from agentmerge.testing import read_checkpoint, survey_of

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from agentmerge.methods.base import MergeMethod
    from agentmerge.tensors import Array


@pytest.fixture(autouse=True)
def not_waiting(unsynced: None) -> None:
    """No test of a method waits for the disk."""


@pytest.fixture(params=["kernels", "definitions"])
def either_way(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Once with the compiled kernels, once with the numpy definitions in their place."""
    if request.param == "definitions":
        monkeypatch.setattr(kernels, "choose", lambda *_: None)


@pytest.fixture(scope="session")
def inputs() -> Path:
    """The golden inputs, for tests that compare with no public implementation and so need no second run."""
    return Path(__file__).parents[1] / "golden"


INPUTS = {
    "self_attn.q_proj": ("self_attn.k_proj", "self_attn.v_proj"),
    "self_attn.o_proj": (),
    "mlp.gate_proj": ("mlp.up_proj",),
    "mlp.down_proj": (),
}
"""The layers of the golden set that inputs are known of, and those that share them."""


@pytest.fixture(scope="session")
def golden_grams(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The Gram matrices of the golden set's made-up inputs, a folder for each agent."""
    root = tmp_path_factory.mktemp("grams")
    inputs = read_checkpoint(Path(__file__).parents[1] / "golden2" / "esm" / "activations_int8.safetensors")
    layers = {f"model.layers.{i}.{name}": others for i in range(2) for name, others in INPUTS.items()}
    pairs = [(name, other) for name, others in layers.items() for other in others]
    shared = {f"{name.rsplit('.', 2)[0]}.{other}.weight": f"{name}.weight" for name, other in pairs}
    for agent in ("code", "tool", "memory"):
        rows = {name: inputs[f"{name}.input.{agent}"].astype(np.float64) / 16 for name in layers}
        grams = {f"{name}.weight": x.T @ x for name, x in rows.items()}
        save(root / agent, grams, metadata={"shared": json.dumps(shared)})
    return root


@pytest.fixture(scope="session")
def golden_recipe(golden_grams: Path) -> Callable[..., dict[str, Any]]:
    """A recipe over the golden numbers, float32 output: `golden_recipe(golden, "ties", seed=1)`."""

    def recipe(root: Path, method: Any, weights: Mapping[str, float] | None = None, **sections: Any) -> dict[str, Any]:
        agents = {
            name: {
                "source": str(root / name),
                "weight": (weights or {}).get(name, 1.0),
                "importance": str(root / "importance" / f"{name}.safetensors"),
                "grams": str(golden_grams / name),
            }
            for name in ("code", "tool", "memory")
        }
        common = {"base": str(root / "base"), "agents": agents, "output": {"dtype": "float32"}}
        return {**common, "method": method, **sections}

    return recipe


@pytest.fixture(scope="session")
def ulps() -> Callable[[Array, Array], Array]:
    """Steps of float32 between two arrays."""

    def between(found: Array, expected: Array) -> Array:
        return np.abs(_ordered(found) - _ordered(expected))

    return between


def _ordered(values: Array) -> Array:
    bits = np.ascontiguousarray(values, np.float32).view(np.int32).astype(np.int64)
    return np.where(bits < 0, -(bits & 0x7FFFFFFF), bits)


@pytest.fixture(scope="session")
def stack_of() -> Callable[..., Stack]:
    """A float32 stack by hand: `stack_of([0, 0], [[1, 0], [0, 2]])`; agents are called a, b, c ..."""

    def stack(
        base: Any, agents: Sequence[Any], name: str = "w", weights: tuple[float, ...] = (), importance: Any = None
    ) -> Stack:
        arrays = [np.array(values, np.float32) for values in (base, *agents)]
        block = Block(TensorSpec(name, "F32", (arrays[0].size,)), 0, arrays[0].size)
        extra = {} if importance is None else {"importance": tuple(np.array(row, np.float32) for row in importance)}
        return Stack(block, arrays[0], tuple(arrays[1:]), tuple("abcdef"[: len(agents)]), weights, extra)

    return stack


@pytest.fixture(scope="session")
def merged() -> Callable[..., Array]:
    """What a method's definition makes of one stack, all its questions answered from it."""

    def result(method: MergeMethod, stack: Stack) -> Array:
        with np.errstate(all="ignore"):
            return method.merge(stack, survey_of(method, [stack]))

    return result


@pytest.fixture(scope="session")
def whole() -> Callable[[Path], Array]:
    """Every tensor of a checkpoint as one float32 vector, in the order of the tensors' names."""

    def vector(source: Path) -> Array:
        tensors = read_checkpoint(source)
        return np.concatenate([as_float32(tensors[name]).reshape(-1) for name in sorted(tensors)])

    return vector
