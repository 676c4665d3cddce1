"""DELLA's compiled loop equals its definition bit for bit, whatever a row is made of."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import pytest

from agentmerge import kernels
from agentmerge.kernels.cpu.loops.drop import SORTED_AT_ONCE
from agentmerge.methods.della import Prune
from agentmerge.survey.by_tensor import ByTensor
from agentmerge.tensors import DTYPES, Block, Stack, TensorSpec
from agentmerge.testing import assert_same_bits

if TYPE_CHECKING:
    from agentmerge.tensors import Array

SPECIAL = (0.0, -0.0, np.nan, -np.nan, np.inf, -np.inf, 1e-45, -1e-45, 3e-40, 1.0, -1.0, 1.0000001, 3.4e38)
SHAPES = ((1, 1), (3, 1), (1, 63), (5, 7), (64, 64), (257, 129), (3, SORTED_AT_ONCE + 5), (40, SORTED_AT_ONCE // 16))
AGENTS = ("a", "b", "c")


def rows(shape: tuple[int, int], kind: str, rng: np.random.Generator) -> Array:
    """Task vectors float32 [agents, n]: mostly 0, all the same magnitude, no two the same, or anything."""
    size = (len(AGENTS), shape[0] * shape[1])
    few = rng.choice(np.array([1, -1, 2, 4], np.float32) * np.float32(2**-20), size)
    return {
        "sparse": np.where(rng.random(size) < 0.1, few, np.float32(0)),
        "equal": few[:, :1] * np.ones(size, np.float32),
        "dense": rng.standard_normal(size).astype(np.float32),
        "special": rng.choice(np.array(SPECIAL, np.float32), size),
        "none": np.zeros(size, np.float32),
        "negative zeros": np.where(rng.random(size) < 0.5, np.float32(-0.0), few),
        "bits": rng.integers(0, 2**32, size, np.uint32).view(np.float32),
    }[kind]


def by_definition(prune: Prune, stack: Stack, monkeypatch: pytest.MonkeyPatch) -> Array:
    with monkeypatch.context() as patched, np.errstate(all="ignore"):
        patched.setattr(kernels, "choose", lambda *_: None)
        return prune(stack).task_vectors()


@pytest.mark.parametrize("kind", ["sparse", "equal", "dense", "special", "none", "negative zeros", "bits"])
def test_rows_of_made_task_vectors(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    rng, factor = np.random.default_rng(3), ByTensor({"w": (1.0, 0.5, 3.0)})
    for number, shape in enumerate(SHAPES):
        tensor, tau = TensorSpec("w", "F32", (2 * shape[0], shape[1])), rows(shape, kind, rng)
        start = number % 2 * 4 * shape[1] if shape[0] > 4 else 0  # of a block, a multiple of 4
        block = Block(tensor, start, start + tau.shape[1])
        base = np.zeros(tau.shape[1], np.float32)
        stack = Stack(block, base, (base,) * len(AGENTS), AGENTS, tau=tau)
        prune = Prune(0.5, 0.3, 7, divides=number % 3 > 0, **({"factor": factor} if number % 2 else {}))
        with np.errstate(all="ignore"):
            made = prune(stack).task_vectors()
        assert_same_bits(made, by_definition(prune, stack, monkeypatch), f"{kind} {shape}")


@pytest.mark.parametrize("dtype", ["BF16", "F16", "F32"])
def test_rows_of_stored_agents(dtype: str, monkeypatch: pytest.MonkeyPatch) -> None:
    rng, shape = np.random.default_rng(5), (33, 100)
    base = (0.02 * rng.standard_normal(3300)).astype(DTYPES[dtype])
    steps = [np.where(rng.random(3300) < share, 1e-3, 0.0).astype(np.float32) for share in (0.0, 0.1, 1.0)]
    agents = tuple((base.astype(np.float32) + step).astype(DTYPES[dtype]) for step in steps)
    stack = Stack(Block(TensorSpec("w", dtype, shape), 0, 3300), base, agents, AGENTS)
    prune = Prune(0.5, 0.15, 1, divides=True)
    made = prune(stack).task_vectors()
    assert_same_bits(made, by_definition(prune, stack, monkeypatch), dtype)
    kept = (made != 0).sum(axis=1) / np.maximum((stack.task_vectors() != 0).sum(axis=1), 1)
    assert kept[0] == 0
    assert 0.55 < kept[1] < 0.75  # the changes of a sparse agent have the highest ranks
    assert 0.45 < kept[2] < 0.55
