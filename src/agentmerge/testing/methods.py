"""The contract that every method passes, run through the real engine."""

from __future__ import annotations

import shutil
from dataclasses import dataclass, replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any

import numpy as np

from agentmerge.api import merge
from agentmerge.files.save import spec_of
from agentmerge.tensors import DTYPES, Array, as_float32
from agentmerge.testing.checkpoints import (
    Sources,
    assert_same_tensors,
    make_agents,
    random_base,
    read_checkpoint,
    write_checkpoint,
)
from agentmerge.testing.kernels import assert_kernel_equals_definition
from agentmerge.testing.stacks import HOSTILE, assert_same_bits, random_gram, random_importance, random_stack, survey_of

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from agentmerge.methods.base import MergeMethod

CONTRACT_DTYPES = {"model.norm.weight": "F32", "model.layers.0.self_attn.q_proj.weight": "F16"}
"""Tensors of the contract's base that are not BF16."""


def assert_contract(
    method: MergeMethod,
    *,
    rules: Sequence[Mapping[str, Any]] = (),
    weights: Sequence[float] = (),
    symmetric: bool = True,
    agents: int = 3,
) -> None:
    """Raise AssertionError unless a method keeps the contract of every method, run through the real engine.

    - agents equal to the base give the base, bit for bit;
    - names, order, shapes and dtypes are the base's, and every number is finite;
    - the bytes do not depend on block size, worker count or shard size;
    - the order of the agents in the recipe does not matter (where the method is `symmetric`);
    - `merge` is pure: it changes no input and gives the same twice;
    - where a merged number is the base's, it has the base's bits: an update of 0 leaves -0.0 as it is;
    - a kernel, where there is one, equals the definition bit for bit.

    Args:
        method: with its settings.
        rules: of the recipe; the agents are called code, memory and tool.
        weights: of code, memory and tool; none is 1 each.
        symmetric: False for a method that is told its agents' order by something else than their names.
        agents: how many, for a method that takes one or two.
    """
    assert_pure(method, agents)
    assert_kernel_equals_definition(method, agents)
    with TemporaryDirectory(prefix="agentmerge-contract-") as name:
        sources = make_agents(Path(name), agents=agents, base=_contract_base())
        pairs = zip(sorted(sources.agents), weights or (1.0,) * agents, strict=True)
        trial = _Trial(method, sources, tuple(rules), dict(pairs))
        _assert_base_kept(trial)
        assert_base_bits(method, agents)
        merged = trial.run("plain")
        _assert_like_base(merged, read_checkpoint(sources.base))
        _assert_same_however_run(trial, merged)
        if symmetric:
            assert_same_tensors(trial.run("turned", turned=True), merged, "agents in another order")


def assert_pure(method: MergeMethod, agents: int = 3) -> None:
    """Raise AssertionError when `merge` changes an input, gives another result twice, or no float32 [n]."""
    for elements in (0, 1, 63, 4097):
        reads = "importance" in method.reads
        mixed = ("BF16", "F16", "F32")
        stack = random_stack(elements, elements=elements, agents=agents, dtypes=mixed, huge=True, importance=reads)
        arrays = (stack.base, *stack.agents, *(array for kind in stack.extra.values() for array in kind))
        before = [array.tobytes() for array in arrays]
        survey = survey_of(method, [stack])
        with np.errstate(all="ignore"):
            merged, again = method.merge(stack, survey), method.merge(stack, survey)
        if merged.dtype != np.float32 or merged.shape != (elements,):
            raise AssertionError(f"merge gave {merged.dtype} {merged.shape}, expected float32 ({elements},)")
        assert_same_bits(again, merged, f"{elements} elements merged twice")
        if before != [array.tobytes() for array in arrays]:
            raise AssertionError(f"merge changed its inputs ({elements} elements)")


def assert_base_bits(method: MergeMethod, agents: int = 3) -> None:
    """Raise AssertionError where a merged number equals the base's and has other bits, as 0.0 has for -0.0.

    In turn two agents cancel, each of three alone changes an element, the last one at weight 1 or 0, and nobody does;
    with fewer agents those are left out that are too many.
    """
    turn, step = np.arange(80) % 5, np.float32(0.25)
    base = np.where(np.arange(80) // 5 % 2, np.float32(0.0), np.float32(-0.0))
    first = np.where(turn <= 1, step, base)
    second = np.where(turn == 0, -step, np.where(turn == 3, step, base))
    changed = (first, second, np.where(turn == 2, step, base))[:agents]
    for weights in ((1.0, 1.0, 1.0), (1.0, 1.0, 0.0)):
        reads, own = "importance" in method.reads, weights[-agents:]
        plain = random_stack(0, elements=80, agents=agents, dtypes=("F32",), weights=own, importance=reads)
        stack = replace(plain, base=base, agents=changed)
        with np.errstate(all="ignore"):
            merged = method.merge(stack, survey_of(method, [stack]))
        same = merged == base
        assert_same_bits(merged[same], base[same], f"an update of 0 at weights {weights}")


@dataclass(frozen=True)
class _Trial:
    """One method over one set of sources, run in several ways."""

    method: MergeMethod
    sources: Sources
    rules: tuple[Mapping[str, Any], ...]
    weights: Mapping[str, float]

    def run(
        self, name: str, *, agents: Mapping[str, Path] | None = None, turned: bool = False, **sections: Any
    ) -> dict[str, Array]:
        """The merged tensors; agents written in the recipe from the last name to the first when `turned`."""
        paths = agents or self.sources.agents
        names = sorted(paths, reverse=turned)
        recipe = {
            "base": str(self.sources.base),
            "agents": {n: self._agent(n, paths[n]) for n in names},
            "method": self.method,
            **({"keep": self._folder("keep", "base", self.sources.base)} if "keep" in self.method.reads else {}),
            "rules": [dict(rule) for rule in self.rules],
            "inputs": {"unchanged": "allow"},
            **sections,
        }
        out = self.sources.base.parent / f"out-{name}"
        merge(recipe, out)
        tensors = read_checkpoint(out)
        shutil.rmtree(out)
        return tensors

    def _agent(self, name: str, path: Path) -> dict[str, Any]:
        agent: dict[str, Any] = {"source": str(path), "weight": self.weights[name]}
        return agent | {kind: self._folder(kind, name, path) for kind in self.method.reads if kind != "keep"}

    def _folder(self, kind: str, name: str, path: Path) -> str:
        """Where what is read beside these weights lies; written when it is asked for first."""
        folder = self.sources.base.parent / f"{kind}-{name}"
        if not folder.exists():
            write_checkpoint(folder, self._beside(kind, name, read_checkpoint(path)))
        return str(folder)

    def _beside(self, kind: str, name: str, tensors: Mapping[str, Array]) -> dict[str, Array]:
        """What the method reads beside weights, made up."""
        rng = np.random.default_rng(len(name))
        if kind == "importance":
            return {tensor: random_importance(rng, array.shape) for tensor, array in tensors.items()}
        works = {n: self.method.work(spec_of(n, array), len(self.sources.agents)) for n, array in tensors.items()}
        shapes = {tensor: work.keep if kind == "keep" else work.gram for tensor, work in works.items()}
        return {tensor: random_gram(rng, shape) for tensor, shape in shapes.items() if shape}


def _contract_base() -> dict[str, Array]:
    tensors = random_base(7, dtypes=CONTRACT_DTYPES)
    embedding = tensors["model.embed_tokens.weight"].reshape(-1)
    hostile = np.array(HOSTILE, np.float32).astype(embedding.dtype)
    embedding[: hostile.size] = hostile
    scalar = np.array(0.5, DTYPES["BF16"])
    none = np.zeros((0, 3), DTYPES["BF16"])
    return {**tensors, "model.rotary.inv_step": np.arange(5), "model.scalar": scalar, "model.none": none}


def _assert_base_kept(trial: _Trial) -> None:
    base = trial.sources.base
    copies = {name: Path(shutil.copytree(base, base.parent / f"copy-{name}")) for name in trial.sources.agents}
    for rounding in ("nearest", "stochastic"):
        merged = trial.run("kept", agents=copies, output={"rounding": rounding})
        assert_same_tensors(merged, read_checkpoint(base), f"agents equal to the base, rounding {rounding}")


def _assert_like_base(merged: Mapping[str, Array], base: Mapping[str, Array]) -> None:
    found, expected = ([spec_of(name, array) for name, array in t.items()] for t in (merged, base))
    if found != expected:
        raise AssertionError(f"the output has {found}, expected {expected}")
    for name, array in merged.items():
        if not np.isfinite(as_float32(array)).all():
            raise AssertionError(f"{name}: not every merged number is finite")


def _assert_same_however_run(trial: _Trial, merged: Mapping[str, Array]) -> None:
    for block_size, workers, shard_size in ((4096, 1, 20_000), (4096, 4, 1), (1_000_000, 2, 1_000_000)):
        run, output = {"block_size": block_size, "workers": workers}, {"shard_size": shard_size}
        found = trial.run("again", run=run, output=output)
        assert_same_tensors(found, merged, f"block_size {block_size}, workers {workers}, shard_size {shard_size}")
