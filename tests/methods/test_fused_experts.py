"""Experts that are one tensor of a layer are merged as the same experts in tensors of their own."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

from agentmerge import merge
from agentmerge.alike.fused import fused_experts
from agentmerge.engine.preflight import planned_from_afar
from agentmerge.methods import layers
from agentmerge.methods.base import MergeMethod
from agentmerge.methods.parts import part_by_part
from agentmerge.methods.registry import resolve_method
from agentmerge.recipe import Recipe
from agentmerge.tensors import Block, Experts, Stack, TensorSpec
from agentmerge.testing import Sources, read_checkpoint, write_checkpoint

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from agentmerge.tensors import Array

STEM = "model.layers.0.mlp.experts"
EXPERTS, ROWS, HIDDEN = 3, 6, 10
NAMES = ("base", "code", "tool")
QUERY = "model.layers.0.self_attn.q_proj.weight"
FORMS = {  # how architectures store them: (gate and up, down) of each expert's [ROWS, HIDDEN], [ROWS, HIDDEN], down
    "qwen3_5_moe": lambda gate, up, down: (np.concatenate([gate, up]), down),
    "llama4": lambda gate, up, down: (np.concatenate([gate, up]).T, down.T),
    "gpt_oss": lambda gate, up, down: (np.stack([gate, up], 1).reshape(2 * ROWS, HIDDEN).T, down.T),
}
METHODS: list[Any] = [
    "wudi_auto",
    {"name": "wudi", "steps": 20},
    "tsv_m",
    "iso_c",
    "iso_cts",
    "resmerge",
    {"name": "svc", "then": "task_arithmetic"},
    {"name": "svc", "then": {"name": "wudi", "solver": "exact"}},
    {"name": "dare", "density": 1.0, "then": {"name": "wudi", "solver": "exact"}},
    {"name": "calibrate", "per": "matrix", "then": {"name": "wudi", "solver": "exact"}},
]


@pytest.fixture(autouse=True)
def on_processors(monkeypatch: pytest.MonkeyPatch) -> None:
    """As on a machine without a GPU, whatever this one has."""
    monkeypatch.setattr(layers, "cuda", lambda: None)


def experts_of(seed: int) -> dict[str, Array]:
    """Gate, up and down of every expert, float32 [EXPERTS, out, in]."""
    rng = np.random.default_rng(7)
    shapes = {"gate_proj": (ROWS, HIDDEN), "up_proj": (ROWS, HIDDEN), "down_proj": (HIDDEN, ROWS)}
    found = {part: rng.normal(0, 0.5, (EXPERTS, *shape)) for part, shape in shapes.items()}
    if seed:
        rng = np.random.default_rng(seed)
        found = {n: a + 1e-2 * rng.standard_normal(a.shape) * (rng.random(a.shape) < 0.5) for n, a in found.items()}
    return {name: array.astype(np.float32) for name, array in found.items()}


def listed(seed: int) -> dict[str, Array]:
    return {f"{STEM}.{i}.{part}.weight": a[i] for part, a in experts_of(seed).items() for i in range(EXPERTS)}


def fused(form: str, tensors: dict[str, Array], stem: str = STEM) -> dict[str, Array]:
    """What an architecture stores of listed experts."""
    each = [[tensors[f"{STEM}.{i}.{p}.weight"] for p in ("gate_proj", "up_proj", "down_proj")] for i in range(EXPERTS)]
    both, down = zip(*(FORMS[form](*one) for one in each), strict=True)
    return {f"{stem}.gate_up_proj": np.stack(both), f"{stem}.down_proj": np.stack(down)}


def beside(seed: int) -> dict[str, Array]:
    """What the model has besides: a matrix and biases of experts."""
    rng = np.random.default_rng(seed)
    return {QUERY: rng.normal(0, 0.1, (8, HIDDEN)).astype(np.float32)}


def put(root: Path, model_type: str | None, tensors: dict[str, dict[str, Array]]) -> Sources:
    for name, one in tensors.items():
        write_checkpoint(root / name, one)
        if model_type is not None:
            config = {"model_type": model_type, "hidden_size": HIDDEN, "num_hidden_layers": 1}
            (root / name / "config.json").write_text(json.dumps(config))
    return Sources(root / "base", {name: root / name for name in NAMES[1:]})


def as_listed(root: Path) -> Sources:
    return put(root, "qwen3_moe", {n: {**listed(i), **beside(i)} for i, n in enumerate(NAMES)})


def as_fused(root: Path, form: str) -> Sources:
    return put(root, form, {n: {**fused(form, listed(i)), **beside(i)} for i, n in enumerate(NAMES)})


def result(sources: Sources, out: Path, method: Any) -> dict[str, Array]:
    record = merge(sources.recipe(method, output={"dtype": "float32"}), out)
    assert not [note for note in record.warnings if "matri" in note and "chance" not in note], record.warnings
    return read_checkpoint(out)


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("method", METHODS, ids=lambda m: m if isinstance(m, str) else "-".join(map(str, m.values())))
def test_fused_experts_are_merged_as_listed_ones(tmp_path: Path, form: str, method: Any) -> None:
    plain = result(as_listed(tmp_path / "listed"), tmp_path / "one", method)
    found = result(as_fused(tmp_path / "fused", form), tmp_path / "two", method)
    start = fused(form, listed(0))
    for name, expected in fused(form, plain).items():
        moved = np.abs(expected - start[name]).max()
        assert moved > 1e-3
        np.testing.assert_allclose(found[name], expected, rtol=0, atol=1e-4 * moved, err_msg=name)


def test_they_are_not_merged_by_the_mean(tmp_path: Path) -> None:
    found = result(as_fused(tmp_path / "in", "gpt_oss"), tmp_path / "out", {"name": "wudi", "solver": "exact"})
    base, code, tool = (fused("gpt_oss", listed(i)) for i in range(3))
    for name in base:
        mean = (code[name] + tool[name]) / 2
        assert np.abs(found[name] - mean).max() > 0.05 * np.abs(mean - base[name]).max()


def test_gates_and_ups_have_a_norm_of_their_own_kind(tmp_path: Path) -> None:
    """Esm scales a layer by those of its kind: the same with experts fused, where gate and up are one tensor."""
    grams = {"in": np.eye(HIDDEN), "out": np.diag(np.arange(1.0, ROWS + 1))}
    outs = {}
    for kind, sources in (
        ("listed", as_listed(tmp_path / "listed")),
        ("fused", as_fused(tmp_path / "fused", "gpt_oss")),
    ):
        held = {QUERY: grams["in"]}
        for name in read_checkpoint(tmp_path / kind / "base"):
            if "experts" in name:
                gram = grams["out" if "down" in name else "in"]
                held[name] = gram if kind == "listed" else np.stack([gram] * EXPERTS)
        write_checkpoint(tmp_path / kind / "grams", held)
        recipe = sources.recipe({"name": "esm"}, output={"dtype": "float32"})
        for agent in recipe["agents"]:
            recipe["agents"][agent] = {"source": str(sources.agents[agent]), "grams": str(tmp_path / kind / "grams")}
        merge(recipe, tmp_path / f"out-{kind}")
        outs[kind] = read_checkpoint(tmp_path / f"out-{kind}")
    for name, expected in fused("gpt_oss", outs["listed"]).items():
        np.testing.assert_allclose(outs["fused"][name], expected, rtol=0, atol=1e-5, err_msg=name)


# which way round they lie


def specs(**shapes: tuple[int, ...]) -> dict[str, TensorSpec]:
    return {f"{STEM}.{n}": TensorSpec(f"{STEM}.{n}", "F32", shape) for n, shape in shapes.items()}


@pytest.mark.parametrize("hidden", [4, 6, 8, 16])
@pytest.mark.parametrize("rows", [4, 8])
def test_both_shapes_together_tell_the_orientation_whatever_the_sizes(hidden: int, rows: int) -> None:
    straight = fused_experts(specs(gate_up_proj=(3, 2 * rows, hidden), down_proj=(3, hidden, rows)), {})
    assert {one.turned for one in straight.values()} == {False}
    turned = fused_experts(specs(gate_up_proj=(3, hidden, 2 * rows), down_proj=(3, rows, hidden)), {})
    assert {one.turned for one in turned.values()} == {True}


def test_without_a_partner_the_hidden_size_tells_unless_the_matrix_is_square() -> None:
    nested: dict[str, Any] = {"text_config": {"hidden_size": 8, "num_hidden_layers": 1}}
    for config in ({"hidden_size": 8}, nested):
        assert fused_experts(specs(up_proj=(3, 6, 8), down_proj=(3, 8, 6)), config) == {
            f"{STEM}.up_proj": Experts(False),
            f"{STEM}.down_proj": Experts(False),
        }
        assert fused_experts(specs(up_proj=(3, 8, 6)), config)[f"{STEM}.up_proj"].turned is True
    assert fused_experts(specs(up_proj=(3, 8, 8)), {"hidden_size": 8})[f"{STEM}.up_proj"].turned is None
    assert fused_experts(specs(up_proj=(3, 6, 8)), {})[f"{STEM}.up_proj"].turned is None


def test_only_some_architectures_have_gate_and_up_by_turns() -> None:
    shapes = specs(gate_up_proj=(3, 8, 12), down_proj=(3, 6, 8))
    kinds = {
        kind: fused_experts(shapes, {"model_type": kind})[f"{STEM}.gate_up_proj"] for kind in ("gpt_oss", "llama4")
    }
    assert {kind: one.joined for kind, one in kinds.items()} == {"gpt_oss": "pairs", "llama4": "halves"}
    inkling = fused_experts(specs(w13_weight=(3, 12, 8), w2_weight=(3, 8, 6)), {})
    assert inkling[f"{STEM}.w13_weight"] == Experts(False, "pairs")


def test_dense_layers_and_routers_are_no_experts() -> None:
    names = {f"{STEM}.0.up_proj.weight": (6, 8), "model.layers.0.mlp.router.weight": (3, 8), "conv.weight": (3, 8, 4)}
    assert fused_experts({n: TensorSpec(n, "F32", shape) for n, shape in names.items()}, {"hidden_size": 8}) == {}


@pytest.mark.parametrize("turned", [False, True])
@pytest.mark.parametrize("joined", ["halves", "pairs"])
def test_what_is_taken_apart_is_put_together_again(*, turned: bool, joined: Any) -> None:
    shape = (2, 4, 6)
    tensor = TensorSpec("experts.gate_up_proj", "F32", shape, Experts(turned, joined))
    flat = np.arange(48, dtype=np.float32)
    stack = Stack(Block(tensor, 0, 48), flat, (flat + 100, flat + 200), ("a", "b"), tau=np.stack([flat, -flat]))
    seen = []

    def keep(part: Stack) -> Array:
        assert part.tau is not None
        assert np.array_equal(part.tau, [part.base, -part.base])
        assert np.array_equal(part.agents[1], part.base + 200)
        seen.append(part)
        return part.base

    assert np.array_equal(part_by_part(stack, turned, keep), flat)
    gate, up = seen
    whole = flat.reshape(shape)
    side = 3 if turned else 2
    first = np.arange(side) if joined == "halves" else 2 * np.arange(side)
    expected = whole[:, :, first] if turned else whole[:, first]
    assert np.array_equal(gate.base.reshape(gate.block.tensor.shape), expected)
    assert {*gate.base, *up.base} == {*flat}
    assert (gate.block.start, gate.block.stop) == (0, 24)


# what is told


def notes_of(sources: Sources, method: Any) -> Iterator[str]:
    with planned_from_afar(Recipe.parse(sources.recipe(method))) as plan:
        yield from map(str, plan.notes)


def test_an_orientation_that_nothing_tells_is_told(tmp_path: Path) -> None:
    names = {
        n: {f"{STEM}.up_proj": np.stack([a[:6, :6] for a in experts_of(i)["gate_proj"]])} for i, n in enumerate(NAMES)
    }
    sources = put(tmp_path, None, names)
    (note,) = notes_of(sources, "wudi_auto")
    assert f"nothing tells whether {STEM.replace('.0.', '.*.')}.up_proj are [experts, out, in] or" in note
    assert "`transposed`" in note
    assert not list(notes_of(sources, {"name": "wudi_auto", "transposed": "*.up_proj"}))
    assert not list(notes_of(sources, "ram"))


def test_what_is_mostly_merged_element_by_element_is_told(tmp_path: Path) -> None:
    sources = as_fused(tmp_path, "gpt_oss")
    assert not list(notes_of(sources, "wudi_auto"))
    (note,) = notes_of(sources, {"name": "wudi_auto", "linear": "*q_proj.weight"})
    share = 1 - 8 * HIDDEN / (8 * HIDDEN + 3 * EXPERTS * ROWS * HIDDEN)
    assert note.startswith(f"{share:.0%} of the elements of matrices, embeddings and head aside, are not merged as")
    assert "mlp.experts.gate_up_proj" in note
    assert not list(notes_of(sources, {"name": "wudi_auto", "linear": "*.experts.*"}))


def test_biases_of_experts_are_no_matrix() -> None:
    bias = TensorSpec(f"{STEM}.gate_up_proj_bias", "F32", (3, 12))
    for name in ("wudi", "tsv_m", "iso_c"):
        method: Any = resolve_method(name)
        assert isinstance(method, MergeMethod)
        assert not method.is_linear(bias)


def test_a_recipe_may_turn_what_is_not_known(tmp_path: Path) -> None:
    """Stacks of another name: `transposed` gives the result of the same matrices the other way round."""
    name, found = "model.layers.0.mlp.expert_stack", {}
    for turned in (False, True):
        tensors = {n: {name: experts_of(i)["up_proj"]} for i, n in enumerate(NAMES)}
        if turned:
            tensors = {n: {name: one[name].swapaxes(1, 2).copy()} for n, one in tensors.items()}
        method = {"name": "wudi", "solver": "exact", "linear": name, **({"transposed": name} if turned else {})}
        sources = put(tmp_path / str(turned), None, tensors)
        merge(sources.recipe(method, output={"dtype": "float32"}), tmp_path / f"out{turned}")
        found[turned] = read_checkpoint(tmp_path / f"out{turned}")[name]
    np.testing.assert_allclose(found[True].swapaxes(1, 2), found[False], rtol=0, atol=1e-6)
