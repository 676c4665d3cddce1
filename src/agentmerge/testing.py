"""For tests of methods: tiny checkpoints, hostile stacks, and the contract that every method passes. Needs no pytest.

Example:
    A test of a plug-in's method::

        from agentmerge.testing import assert_contract

        def test_my_method_keeps_the_contract() -> None:
            assert_contract(MyMethod())
"""

from __future__ import annotations

import json
import shutil
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any

import numpy as np

from agentmerge.api import merge
from agentmerge.files.save import save
from agentmerge.files.save import spec_of as spec_of
from agentmerge.methods.base import before_merging
from agentmerge.methods.kernel import merge_by_kernels
from agentmerge.sources.opening import opened
from agentmerge.survey.rounding import Rounding
from agentmerge.survey.statistic import Survey
from agentmerge.synth.numbers import densities_by_name
from agentmerge.tensors import DTYPES, LEAF, MERGEABLE, Array, Block, Cast, Stack, TensorSpec, as_float32

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from agentmerge.methods.base import MergeMethod

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

CONTRACT_DTYPES = {"model.norm.weight": "F32", "model.layers.0.self_attn.q_proj.weight": "F16"}
MOST_ROUNDS = 16
"""How often a method may ask before a test gives up on it."""

_ONE_STEP = {"BF16": 1, "F16": 1, "F32": 1 << 16, "F64": 1 << 45}
"""A change of about one bfloat16 step (one float16 step for F16), in the integer that holds the bits."""

_HOSTILE = (0.0, -0.0, 1e-45, -1e-40, 6e-8, 1e-5, -1.0000001e-5, 1.1754944e-38, 0.02, -1.0, 448.0, 65504.0)
_HUGE = (3.3e38, -3.3e38)


# tiny checkpoints


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


# stacks


def random_stack(
    seed: int,
    *,
    elements: int = 4097,
    agents: int = 3,
    dtypes: Sequence[str] = ("BF16",),
    weights: Sequence[float] = (),
    huge: bool = False,
    non_finite: bool = False,
    importance: bool = False,
    name: str = "model.layers.0.mlp.up_proj.weight",
) -> Stack:
    """A stack of random numbers with hostile ones strewn in; every array is read-only.

    Hostile: -0.0, subnormals, the threshold and its neighbours, large numbers; agents that equal the base in half of
    the elements.

    Args:
        seed: of the numbers.
        elements: of the block.
        agents: how many.
        dtypes: of the base and of the agents, in turn.
        weights: of the agents; none means 1.
        huge: also numbers whose differences overflow float32.
        non_finite: also NaN and inf, here and there.
        importance: beside the weights, some of it 0, as a method that `reads` it is given.
        name: of the tensor.
    """
    rng = np.random.default_rng(seed)
    pool = [*_HOSTILE, *(_HUGE if huge else ()), *((np.nan, np.inf, -np.inf) if non_finite else ())]

    def numbers() -> Array:
        plain = 0.02 * rng.standard_normal(elements)
        return np.where(rng.random(elements) < 0.2, rng.choice(pool, elements), plain).astype(np.float32)

    def stored(values: Array, t: int) -> Array:
        with np.errstate(over="ignore"):
            array = values.astype(DTYPES[dtypes[t % len(dtypes)]])
        array.flags.writeable = False
        return array

    base = numbers()
    kept = [np.where(rng.random(elements) < 0.5, base, numbers()) for _ in range(agents)]
    spec = TensorSpec(name, dtypes[0], (elements,))
    found = tuple(random_importance(rng, (elements,)) for _ in range(agents)) if importance else ()
    return Stack(
        Block(spec, 0, elements),
        stored(base, 0),
        tuple(stored(values, t + 1) for t, values in enumerate(kept)),
        tuple(sorted(densities_by_name(agents))) if agents else (),
        tuple(weights),
        {"importance": found} if importance else {},
    )


def random_importance(rng: np.random.Generator, shape: tuple[int, ...]) -> Array:
    """A made-up diagonal Fisher: positive float32 numbers, a tenth of them 0; read-only."""
    values = np.where(rng.random(shape) < 0.1, 0, rng.random(shape) ** 4).astype(np.float32)
    values.flags.writeable = False
    return values


def survey_of(method: MergeMethod, stacks: Iterable[Stack]) -> Survey:
    """Everything that a method asks for, folded over the stacks by the statistics' own definitions.

    Raises:
        AssertionError: the method does not stop asking.
    """
    survey, held = Survey(), tuple(stacks)
    for _ in range(MOST_ROUNDS):
        asked = before_merging(method.ask(survey))
        if not asked:
            return survey
        found = Survey()
        for stack in held:
            for statistic in asked:
                with np.errstate(all="ignore"):
                    found.add(statistic, stack.block.tensor.name, statistic.observe(stack))
        survey.update(found)
    raise AssertionError(f"{method!r} still asks for {method.ask(survey)} after {MOST_ROUNDS} folds")


def assert_same_bits(found: Array, expected: Array, what: str) -> None:
    """Raise AssertionError unless two arrays have one dtype and shape, and the same bits (any NaN equals any NaN)."""
    if found.dtype != expected.dtype or found.shape != expected.shape:
        raise AssertionError(f"{what}: {found.dtype} {found.shape}, expected {expected.dtype} {expected.shape}")
    left, right = (np.ascontiguousarray(array).reshape(-1) for array in (found, expected))
    differ = left.view(f"u{left.dtype.itemsize}") != right.view(f"u{right.dtype.itemsize}")
    if left.dtype.kind not in "iub":
        with np.errstate(invalid="ignore"):
            differ &= ~(np.isnan(left) & np.isnan(right))
    if differ.any():
        i = int(np.argmax(differ))
        raise AssertionError(f"{what}: {int(differ.sum())} elements differ, the first at {i}: {left[i]}, {right[i]}")


def assert_same_tensors(found: Mapping[str, Array], expected: Mapping[str, Array], what: str = "checkpoint") -> None:
    """Raise AssertionError unless two checkpoints hold the same tensors in the same order, bit for bit."""
    if list(found) != list(expected):
        raise AssertionError(f"{what}: tensors {list(found)}, expected {list(expected)}")
    for name, array in found.items():
        assert_same_bits(array, expected[name], f"{what}: {name}")


# the contract


def assert_contract(
    method: MergeMethod,
    *,
    rules: Sequence[Mapping[str, Any]] = (),
    weights: Sequence[float] = (1.0, 1.0, 1.0),
    symmetric: bool = True,
) -> None:
    """Raise AssertionError unless a method keeps the contract of every method, run through the real engine.

    - agents equal to the base give the base, bit for bit;
    - names, order, shapes and dtypes are the base's, and every number is finite;
    - the bytes do not depend on block size, worker count or shard size;
    - the order of the agents in the recipe does not matter (where the method is `symmetric`);
    - `merge` is pure: it changes no input and gives the same twice;
    - a kernel, where there is one, equals the definition bit for bit.

    Args:
        method: with its settings.
        rules: of the recipe; the agents are called code, memory and tool.
        weights: of code, memory and tool.
        symmetric: False for a method that is told its agents' order by something else than their names.
    """
    assert_pure(method)
    assert_kernel_equals_definition(method)
    with TemporaryDirectory(prefix="agentmerge-contract-") as name:
        sources = make_agents(Path(name), base=_contract_base())
        trial = _Trial(method, sources, tuple(rules), dict(zip(sorted(sources.agents), weights, strict=True)))
        _assert_base_kept(trial)
        merged = trial.run("plain")
        _assert_like_base(merged, read_checkpoint(sources.base))
        _assert_same_however_run(trial, merged)
        if symmetric:
            assert_same_tensors(trial.run("turned", turned=True), merged, "agents in another order")


def assert_pure(method: MergeMethod) -> None:
    """Raise AssertionError when `merge` changes an input, gives another result twice, or no float32 [n]."""
    for elements in (0, 1, 63, 4097):
        reads = "importance" in method.reads
        stack = random_stack(elements, elements=elements, dtypes=("BF16", "F16", "F32"), huge=True, importance=reads)
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


def assert_kernel_equals_definition(method: MergeMethod) -> None:
    """Raise AssertionError where `kernel` merges something else than `merge` and the cast; passes without a kernel."""
    for seed, rounding in enumerate(("nearest", "stochastic")):
        reads = "importance" in method.reads
        stack = random_stack(
            seed, elements=2 * LEAF + 1, dtypes=("BF16", "F32"), weights=(1.0, 0.7, 1.3), huge=True, importance=reads
        )
        survey, tensor = survey_of(method, [stack]), stack.block.tensor.name
        for dtype in ("BF16", "F16", "F32"):
            cast = Cast(dtype, "stochastic" if rounding == "stochastic" else "nearest", seed)
            out: Array = np.zeros(stack.block.elements, DTYPES[dtype])
            counts = merge_by_kernels(method, stack, survey, cast, out)
            if counts is None:
                continue
            with np.errstate(all="ignore"):
                merged = method.merge(stack, survey)
                expected = cast.apply(merged, tensor, 0)
                counted = Rounding(method.overlap.threshold).observe(stack, merged, expected, cast)
            assert_same_bits(out, expected, f"the kernel at {dtype}, {rounding}")
            if counts != counted:
                raise AssertionError(f"the kernel at {dtype}, {rounding} counted {counts}, expected {counted}")


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
        agent = {"source": str(path), "weight": self.weights[name]}
        if "importance" not in self.method.reads:
            return agent
        folder = self.sources.base.parent / f"importance-{name}"
        if not folder.exists():
            rng = np.random.default_rng(len(name))
            shapes = {tensor: array.shape for tensor, array in read_checkpoint(path).items()}
            write_checkpoint(folder, {tensor: random_importance(rng, shape) for tensor, shape in shapes.items()})
        return {**agent, "importance": str(folder)}


def _contract_base() -> dict[str, Array]:
    tensors = random_base(7, dtypes=CONTRACT_DTYPES)
    embedding = tensors["model.embed_tokens.weight"].reshape(-1)
    hostile = np.array(_HOSTILE, np.float32).astype(embedding.dtype)
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
    for block_size in (4096, 1_000_000):
        for workers in (1, 2, 4):
            found = trial.run("again", run={"block_size": block_size, "workers": workers})
            assert_same_tensors(found, merged, f"block_size {block_size}, workers {workers}")
    for shard_size in (1, 20_000):
        found = trial.run("shards", output={"shard_size": shard_size})
        assert_same_tensors(found, merged, f"shard_size {shard_size}")
