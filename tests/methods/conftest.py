"""What several tests of methods need: recipes over the golden numbers, stacks by hand, the contract with importance."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

from agentmerge import merge
from agentmerge.tensors import Block, Stack, TensorSpec, as_float32
from agentmerge.testing import (
    Sources,
    assert_same_bits,
    assert_same_tensors,
    make_agents,
    random_base,
    random_stack,
    read_checkpoint,
    survey_of,
    write_checkpoint,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from agentmerge.methods.base import MergeMethod
    from agentmerge.tensors import Array

NAMES = ("code", "memory", "tool")


@pytest.fixture(autouse=True)
def unsynced(monkeypatch: pytest.MonkeyPatch) -> None:
    """Methods do not care what a power cut leaves behind, so their tests need not wait for the disk."""
    monkeypatch.setattr(os, "fsync", lambda fd: None)
    monkeypatch.setattr(os, "fdatasync", lambda fd: None, raising=False)


@pytest.fixture(scope="session")
def inputs() -> Path:
    """The golden inputs, for tests that compare with no public implementation and so need no second run."""
    return Path(__file__).parents[1] / "golden"


@pytest.fixture(scope="session")
def golden_recipe() -> Callable[..., dict[str, Any]]:
    """A recipe over the golden numbers, float32 output: `golden_recipe(golden, "ties", seed=1)`."""

    def recipe(root: Path, method: Any, weights: Mapping[str, float] | None = None, **sections: Any) -> dict[str, Any]:
        agents = {
            name: {
                "source": str(root / name),
                "weight": (weights or {}).get(name, 1.0),
                "importance": str(root / "importance" / f"{name}.safetensors"),
            }
            for name in ("code", "tool", "memory")
        }
        return {
            "base": str(root / "base"),
            "agents": agents,
            "method": method,
            "output": {"dtype": "float32"},
            **sections,
        }

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
    """What a method makes of one stack, all its questions answered from it."""

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


@pytest.fixture
def assert_contract_with_importance(tmp_path: Path) -> Callable[..., None]:
    """The contract of agentmerge.testing for methods that read importance, which needs a place in the recipe."""

    def check(method: MergeMethod, weights: tuple[float, ...] = (1.0, 1.0, 1.0)) -> None:
        _assert_pure(method)
        shapes = {"model.norm.weight": "F32", "model.layers.0.self_attn.q_proj.weight": "F16"}
        sources = make_agents(tmp_path / "in", base=random_base(7, dtypes=shapes))
        base = read_checkpoint(sources.base)
        rng = np.random.default_rng(1)
        for name in NAMES:
            drawn = {n: (rng.chisquare(1, a.shape) * (rng.random(a.shape) < 0.9)).astype("f4") for n, a in base.items()}
            write_checkpoint(tmp_path / f"importance-{name}", drawn, config={})
        copies = {name: write_checkpoint(tmp_path / f"copy-{name}", base) for name in NAMES}

        def run(agents: Mapping[str, Path] = sources.agents, *, turned: bool = False, **sections: Any) -> Any:
            named = {
                n: {"source": str(agents[n]), "weight": w, "importance": str(tmp_path / f"importance-{n}")}
                for n, w in sorted(zip(NAMES, weights, strict=True), reverse=turned)
            }
            recipe = Sources(sources.base, {}).recipe(method, inputs={"unchanged": "allow"}, **sections)
            merge({**recipe, "agents": named}, tmp_path / "out", overwrite=True)
            return read_checkpoint(tmp_path / "out")

        for rounding in ("nearest", "stochastic"):
            assert_same_tensors(run(copies, output={"rounding": rounding}), base, "agents equal to the base")
        plain = run()
        assert [(n, a.dtype, a.shape) for n, a in plain.items()] == [(n, a.dtype, a.shape) for n, a in base.items()]
        assert all(np.isfinite(as_float32(array)).all() for array in plain.values())
        assert_same_tensors(run(turned=True), plain, "agents in another order")
        for block_size, workers in ((4096, 1), (4096, 4), (1_000_000, 2)):
            again = run(run={"block_size": block_size, "workers": workers})
            assert_same_tensors(again, plain, f"block_size {block_size}, workers {workers}")
        assert_same_tensors(run(output={"shard_size": 20_000}), plain, "more shards")

    return check


def _assert_pure(method: MergeMethod) -> None:
    for elements in (0, 1, 63, 4097):
        stack = random_stack(elements, elements=elements, dtypes=("BF16", "F16", "F32"), huge=True)
        rng = np.random.default_rng(elements)
        stack.extra["importance"] = tuple(rng.chisquare(1, elements).astype("f4") for _ in range(3))  # type: ignore[index]
        arrays = (stack.base, *stack.agents, *stack.extra["importance"])
        before = [array.tobytes() for array in arrays]
        survey = survey_of(method, [stack])
        with np.errstate(all="ignore"):
            found, again = method.merge(stack, survey), method.merge(stack, survey)
        assert found.dtype == np.float32
        assert found.shape == (elements,)
        assert_same_bits(again, found, "merged twice")
        assert before == [array.tobytes() for array in arrays]
