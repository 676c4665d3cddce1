"""ESM gives what both of the authors' codes give, in either form, and tells where it is not defined."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from safetensors.numpy import load_file

from agentmerge import merge
from agentmerge.methods import shifts
from agentmerge.methods.arrays import Arrays
from agentmerge.methods.esm import Esm, kind_of
from agentmerge.methods.esm_norms import MatrixNorms, NormsOf
from agentmerge.methods.registry import resolve_method
from agentmerge.methods.torch_arrays import TorchArrays
from agentmerge.methods.vectors import Vectors
from agentmerge.survey.reported import Reported, collecting
from agentmerge.survey.statistic import Survey
from agentmerge.tensors import Block, Stack, TensorSpec
from agentmerge.testing import assert_contract, assert_same_bits, read_checkpoint, survey_of

if TYPE_CHECKING:
    from agentmerge.tensors import Array

TESTS = Path(__file__).parents[1]
COPY, SHARED = TESTS / "golden2", TESTS.parent / "../shared/golden2"
T3, T2 = ("code", "tool", "memory"), ("tool", "memory")
VIT = {"name": "esm_vit", "padded_from": 96}
CASES: dict[str, tuple[dict[str, Any], tuple[str, ...]]] = {
    "roberta_code_T3": ({"name": "esm"}, T3),
    "roberta_code_no_layer_scaling_T3": ({"name": "esm", "layer_power": 0}, T3),
    "roberta_code_T2_float64": ({"name": "esm"}, T2),
    "vit_code_T3": (VIT, T3),
    "vit_code_no_layer_scaling_T3": ({**VIT, "layer_power": 0}, T3),
    "vit_code_o_by_shift_T3": ({**VIT, "by_svd": ""}, T3),
    "vit_code_T2_float64": (VIT, T2),
}
"""File of the set: our method, and whose agents."""
INPUT_OF = {"k_proj": "q_proj", "v_proj": "q_proj", "up_proj": "gate_proj"}
NAME = "model.layers.0.mlp.up_proj.weight"


def expected(name: str) -> dict[str, Array]:
    """The whole set beside this checkout, or the part of it that is copied."""
    for root in (SHARED, COPY):
        if (path := root / "esm" / f"{name}.safetensors").exists():
            return load_file(path)
    pytest.skip("no ../shared/golden2 beside this checkout; tests/golden2 holds a part of it")


@pytest.fixture(scope="module")
def checkpoints() -> dict[str, dict[str, Array]]:
    return {name: read_checkpoint(TESTS / "golden" / name) for name in ("base", *T3)}


@pytest.fixture(scope="module")
def activations() -> dict[str, Array]:
    return {name: array.astype(np.float64) / 16 for name, array in expected("activations_int8").items()}


@pytest.fixture(scope="module")
def stacks(checkpoints: Any, activations: Any) -> Any:
    """Every tensor of the golden set with the Gram matrices of its inputs, where it has such."""

    def made(agents: tuple[str, ...]) -> list[Stack]:
        return [stack_of(checkpoints, activations, tensor, agents) for tensor in checkpoints["base"]]

    return made


def stack_of(checkpoints: Any, activations: Any, tensor: str, agents: tuple[str, ...]) -> Stack:
    base, names = checkpoints["base"][tensor], tuple(sorted(agents))
    rows = tuple(checkpoints[name][tensor].reshape(-1) for name in names)
    stem, kind = [*tensor.rsplit(".", 2), ""][:2]
    inputs = [activations.get(f"{stem}.{INPUT_OF.get(kind, kind)}.input.{name}") for name in names]
    grams = () if any(x is None for x in inputs) else tuple(x.T @ x for x in inputs)
    block = Block(TensorSpec(tensor, "BF16", base.shape), 0, base.size)
    return Stack(block, base.reshape(-1), rows, names, grams=grams)


def made_up(shape: tuple[int, int] = (12, 9), agents: int = 3, tokens: int = 40, **changed: Any) -> Stack:
    """One matrix in float32, its agents and their Gram matrices."""
    rng = np.random.default_rng(sum(shape) + agents)
    base = rng.standard_normal(shape).astype(np.float32).reshape(-1)
    rows = tuple(base + (0.01 * rng.standard_normal(base.size)).astype(np.float32) for _ in range(agents))
    inputs = rng.standard_normal((agents, tokens, shape[1]))
    block = Block(TensorSpec(NAME, "F32", shape), 0, base.size)
    stack = Stack(block, base, rows, tuple("abcdefgh"[:agents]), grams=tuple(x.T @ x for x in inputs))
    return replace(stack, **changed)


def update_of(method: Esm, stack: Stack) -> Array:
    found = method.update(Vectors(stack, Arrays(), turned=False), Arrays())
    return np.zeros(stack.block.tensor.shape) if found is None else np.asarray(found)


def by_definition(stack: Stack) -> Array:
    """The head of esm.py with decompositions in numpy, for Gram matrices of full rank."""
    rows, columns = stack.block.tensor.shape
    taus = [tau.reshape(rows, columns).astype(np.float64) for tau in stack.task_vectors()]
    lefts, rights, kept = [], [], rows // len(taus)
    for tau, gram in zip(taus, stack.grams, strict=True):
        root = np.linalg.cholesky(gram)
        directions, values, _ = np.linalg.svd(tau @ root)
        energies = np.concatenate([values**2, np.zeros(rows)])[:kept]
        e = (energies / energies.mean()) ** 0.15
        lefts.append(directions[:, :kept] * (e / e.mean()))
        rights.append(lefts[-1].T @ tau)

    def pm(stacked: Array) -> Array:
        left, values, right = np.linalg.svd(stacked, full_matrices=False)
        return (left * (values > 1e-9 * values[0])) @ right * values.mean()

    return pm(np.concatenate(lefts, 1)) @ pm(np.concatenate(rights))


# the public codes


@pytest.mark.parametrize("name", CASES)
def test_the_authors_numbers(checkpoints: Any, stacks: Any, name: str) -> None:
    """Of the float64 runs: how they are stored, and noise that comes back in gate_proj, as the README says."""
    settings, agents = CASES[name]
    method, held, wanted = resolve_method(settings), stacks(agents), expected(name)
    survey = survey_of(method, held)
    off = {}
    for stack in held:
        tensor = stack.block.tensor.name
        if tensor in wanted:
            base = checkpoints["base"][tensor].astype(np.float64).reshape(-1)
            update = wanted[tensor].astype(np.float64).reshape(-1) - base
            off[tensor] = np.linalg.norm(method.merge(stack, survey) - base - update) / np.linalg.norm(update)
    if name.endswith("float64"):
        assert off.pop("model.layers.0.mlp.gate_proj.weight") < 5e-5
    assert max(off.values()) < (3e-6 if name.endswith("float64") else 9e-5)
    assert len(off) == len(wanted) - name.endswith("float64")


def test_where_rows_are_counted_once_the_vit_codes_padding_is_what_differs(checkpoints: Any, stacks: Any) -> None:
    method, wanted = resolve_method({"name": "esm_vit", "layer_power": 0}), expected("vit_code_no_layer_scaling_T3")
    for kind, least, most in (("gate_proj", 5e-3, 2e-2), ("down_proj", 0, 9e-5)):
        tensor = f"model.layers.0.mlp.{kind}.weight"
        (stack,) = [stack for stack in stacks(T3) if stack.block.tensor.name == tensor]
        base = checkpoints["base"][tensor].astype(np.float64).reshape(-1)
        update = wanted[tensor].astype(np.float64).reshape(-1) - base
        assert least <= np.linalg.norm(method.merge(stack, Survey()) - base - update) / np.linalg.norm(update) < most


KEPT = {
    "esm": "`esm` 1.06, 0.48, 0.50",
    "esm_vit": "`esm_vit` 1.75, 1.80, 1.79",
    "regmean": "`regmean` 0.33, 0.33, 0.33",
}


@pytest.mark.parametrize("name", KEPT)
def test_the_document_says_what_is_kept_of_a_unique_change(stacks: Any, name: str) -> None:
    """<merged - base, tau> / <tau, tau> over what one agent alone changed, in the matrices of the first layer."""
    words, method, held = KEPT[name], resolve_method(name), stacks(T3)
    assert words in " ".join((TESTS.parent / "docs" / "methods.md").read_text(encoding="utf-8").split())
    survey, kept, whole = survey_of(method, held), np.zeros(3), np.zeros(3)
    for stack in held:
        if stack.block.tensor.name.startswith("model.layers.0.") and len(stack.block.tensor.shape) == 2:
            tau = stack.task_vectors().astype(np.float64)
            update = method.merge(stack, survey) - stack.base.astype(np.float64)
            alone = (tau != 0).sum(axis=0) == 1
            kept += (alone * tau * update).sum(axis=1)
            whole += (alone * tau * tau).sum(axis=1)
    np.testing.assert_allclose(kept / whole, [float(text) for text in words.replace(",", "").split()[-3:]], atol=0.0051)


# the formula


@pytest.mark.parametrize("shape", [(12, 9), (9, 12), (30, 4), (4, 30), (7, 7)])
def test_it_is_its_definition_by_decompositions(shape: tuple[int, int]) -> None:
    stack = made_up(shape)
    expect = by_definition(stack)
    np.testing.assert_allclose(update_of(Esm(), stack), expect, rtol=0, atol=1e-8 * np.abs(expect).max())


@pytest.mark.parametrize("shape", [(12, 9), (30, 4), (4, 30)])
def test_both_forms_give_the_same_directions(monkeypatch: pytest.MonkeyPatch, shape: tuple[int, int]) -> None:
    stack, found = made_up(shape), []
    tau = stack.task_vectors()[0].reshape(shape).astype(np.float64)
    for outputs in (True, False):
        monkeypatch.setattr(shifts, "outputs_are_cheaper", lambda *_, chosen=outputs: chosen)
        shift = shifts.leading(tau, stack.grams[0], 3, cut=2.0**-52, exponent=0.15, arrays=Arrays())
        found.append((shift.directions @ shift.directions.T, shift.energies))
    np.testing.assert_allclose(found[0][0], found[1][0], rtol=0, atol=1e-9)
    np.testing.assert_allclose(found[0][1], found[1][1], rtol=1e-9)


def test_the_cheaper_form_is_chosen() -> None:
    assert shifts.outputs_are_cheaper(512, 512)
    assert shifts.outputs_are_cheaper(896, 4864)
    assert not shifts.outputs_are_cheaper(4864, 896)


def test_the_scale_of_the_inputs_cancels_and_the_order_of_agents_too() -> None:
    stack = made_up()
    larger = replace(stack, grams=tuple(1024 * gram for gram in stack.grams))
    np.testing.assert_allclose(update_of(Esm(), larger), update_of(Esm(), stack), rtol=0, atol=1e-12)
    turned = replace(stack, agents=stack.agents[::-1], grams=stack.grams[::-1])
    np.testing.assert_allclose(update_of(Esm(), turned), update_of(Esm(), stack), rtol=0, atol=1e-10)


@pytest.mark.parametrize("tensor", [NAME, "lm_head.weight", "model.norm.weight"])
def test_a_scale_multiplies_what_it_says(tensor: str) -> None:
    stack = made_up()
    shape = (108,) if "norm" in tensor else (12, 9)
    stack = replace(stack, block=Block(TensorSpec(tensor, "F32", shape), 0, 108))

    def moved(**settings: Any) -> Array:
        return Esm(layer_power=0, **settings).merge(stack, Survey()) - stack.base

    once, twice, alone = moved(), moved(scale=2.0), moved(scale=2.0, scale_others=False)
    np.testing.assert_allclose(twice, 2 * once, rtol=0, atol=1e-6)
    np.testing.assert_allclose(alone, (2 if tensor == NAME else 1) * once, rtol=0, atol=1e-6)


def test_layers_are_scaled_by_their_norm_beside_the_mean_of_their_kind() -> None:
    layers = [made_up(agents=2), made_up((12, 9), agents=4)]
    layers = [
        replace(s, block=Block(TensorSpec(f"model.layers.{i}.mlp.up_proj.weight", "F32", (12, 9)), 0, 108))
        for i, s in enumerate(layers)
    ]
    plain, method = [update_of(Esm(), stack) for stack in layers], Esm(layer_power=1.5)
    survey = survey_of(method, layers)
    norms = [np.linalg.norm(update) for update in plain]
    for stack, update, norm in zip(layers, plain, norms, strict=True):
        found = method.merge(stack, survey) - stack.base
        expect = (norm / np.mean(norms)) ** 1.5 * update.reshape(-1)
        np.testing.assert_allclose(found, expect, rtol=0, atol=1e-6)
    assert kind_of(layers[0].block.tensor) == kind_of(layers[1].block.tensor) == "model.layers.*.mlp.up_proj.weight"


def test_a_layer_that_nobody_changed_has_no_say_in_the_mean_and_keeps_the_base() -> None:
    changed = made_up()
    spec = TensorSpec("model.layers.1.mlp.up_proj.weight", "F32", (12, 9))
    still = replace(changed, block=Block(spec, 0, 108), agents=(changed.base,) * 3)
    method = Esm()
    survey = survey_of(method, [changed, still])
    assert_same_bits(method.merge(still, survey), still.base, "nobody changed it")
    alone = method.merge(changed, survey_of(method, [changed]))
    assert_same_bits(method.merge(changed, survey), alone, "the other layer")


# what is not defined


@pytest.mark.parametrize(("tokens", "told"), [(40, 0), (4, 0), (3, 9), (2, 6)])
def test_too_few_tokens_are_told(tokens: int, told: int) -> None:
    """Four directions of each agent are asked for, nine inputs must be spanned."""
    with collecting() as facts:
        found = update_of(Esm(), made_up((12, 9), tokens=tokens))
    assert np.isfinite(found).all()
    assert facts.get("undefined", {}) == ({NAME: float(told)} if told and told < 9 else {})


def test_the_record_tells_them() -> None:
    survey = Survey()
    survey.add(Reported(), "", {"undefined": {NAME: 6.0}})
    told = Esm().told(survey, ("a", "b"))
    assert told.learned["esm"]["undefined"]["matrices"] == 1
    assert "in 1 matrix there are fewer directions than esm asks for" in str(told.notes[0])


def test_noise_of_a_rank_deficient_gram_matrix_is_cut_as_its_dtype_says() -> None:
    stack = made_up((12, 9), tokens=3)
    exact = update_of(Esm(), stack)
    single = replace(stack, grams=tuple(gram.astype(np.float32) for gram in stack.grams))
    np.testing.assert_allclose(update_of(Esm(), single), exact, rtol=0, atol=1e-4 * np.abs(exact).max())
    noisy = update_of(Esm(cut=2.0**-52), single)
    assert np.abs(noisy - exact).max() > 1e-3 * np.abs(exact).max()


@pytest.mark.parametrize("inputs", [0.0, 1e-30, 1e30])
def test_inputs_that_are_nothing_or_huge_give_finite_numbers(inputs: float) -> None:
    stack = made_up()
    stack = replace(stack, grams=tuple(inputs * gram for gram in stack.grams))
    assert np.isfinite(update_of(Esm(), stack)).all()


def test_more_agents_than_rows_leave_the_base() -> None:
    stack = made_up((2, 9), agents=3)
    method = Esm(layer_power=0)
    assert_same_bits(method.merge(stack, Survey()), stack.base, "two rows for three agents")


def test_who_is_absent_has_no_matrix_and_takes_no_part() -> None:
    stack = made_up()
    absent = replace(stack, agents=(stack.base, *stack.agents[1:]), absent=frozenset("a"))
    gone = replace(absent, grams=(None, *stack.grams[1:]))
    np.testing.assert_array_equal(update_of(Esm(), gone), update_of(Esm(), absent))


def test_experts_are_merged_one_by_one_each_with_its_own_inputs() -> None:
    parts = [made_up(agents=count) for count in (3, 3)]
    spec = TensorSpec("model.layers.0.mlp.experts.up_proj.weight", "F32", (2, 12, 9))
    parts[1] = replace(parts[1], grams=tuple(gram[::-1, ::-1].copy() for gram in parts[1].grams))
    together = Stack(
        Block(spec, 0, 216),
        np.concatenate([part.base for part in parts]),
        tuple(np.concatenate(rows) for rows in zip(*(part.agents for part in parts), strict=True)),
        parts[0].names,
        grams=tuple(np.stack(grams) for grams in zip(*(part.grams for part in parts), strict=True)),
    )
    method = Esm(layer_power=0)
    found = method.merge(together, Survey()).reshape(2, -1)
    for expert, part in enumerate(parts):
        assert_same_bits(found[expert], method.merge(part, Survey()), f"expert {expert}")
    assert method.work(spec, 3).gram == (2, 9, 9)
    assert set(MatrixNorms.of(Esm()).observe(together)) == {f"{spec.name}[0]", f"{spec.name}[1]"}


def test_which_tensors_need_gram_matrices() -> None:
    q, o, head = (
        TensorSpec(name, "BF16", (8, 6)) for name in (NAME, "model.layers.0.self_attn.o_proj.weight", "lm_head.weight")
    )
    assert [Esm().work(spec, 2).gram for spec in (q, o, head)] == [(6, 6), (6, 6), ()]
    vit: Any = resolve_method("esm_vit")
    assert [vit.work(spec, 2).gram for spec in (q, o, head)] == [(6, 6), (), ()]
    assert [vit.work(spec, 2).reach for spec in (q, o, head)] == ["tensor", "matrix", "matrix"]
    turned: Any = resolve_method({"name": "esm", "transposed": NAME})
    assert turned.work(q, 2).gram == (8, 8)
    only: Any = resolve_method({"name": "esm", "matrices": ""})
    assert only.work(head, 2).reach == "element"


def test_norms_travel_and_add_up_in_any_order() -> None:
    kind, left, right = NormsOf(), {"b": 0.1}, {"a": 1 / 3}
    assert list(kind.combine(left, right)) == list(kind.combine(right, left)) == ["a", "b"]
    assert kind.decode(json.loads(json.dumps(kind.encode(right)))) == right
    assert MatrixNorms.of(Esm()).key != MatrixNorms.of(Esm(scale=2.0)).key
    assert Esm(layer_power=0).ask(Survey()) == (Reported(),)


@pytest.mark.parametrize("name", ["esm", "regmean", "tsv_m", "iso_cts"])
def test_a_layer_that_a_rule_skips_for_every_agent_keeps_the_base(
    inputs: Path, golden_recipe: Any, tmp_path: Path, name: str
) -> None:
    tensor = "model.layers.0.self_attn.q_proj.weight"
    rules = [{"tensors": tensor, "skip": list(T3)}, {"tensors": "*.layers.1.*", "take": "base"}]
    merge(golden_recipe(inputs, name, rules=rules), tmp_path / "out")
    base, found = (read_checkpoint(folder) for folder in (inputs / "base", tmp_path / "out"))
    np.testing.assert_array_equal(found[tensor], base[tensor].astype(np.float32))
    other = tensor.replace("q_proj", "o_proj")
    assert (found[other] != base[other].astype(np.float32)).any()


@pytest.mark.slow
@pytest.mark.parametrize("tensor", [NAME, "lm_head.weight"])
@pytest.mark.parametrize("shape", [(12, 9), (30, 4)])
def test_torch_gives_the_same(tensor: str, shape: tuple[int, int]) -> None:
    stack = made_up(shape)
    stack = replace(stack, block=Block(TensorSpec(tensor, "F32", shape), 0, stack.base.size))
    for method in (Esm(), resolve_method(VIT)):
        arrays = TorchArrays("cpu")
        found = method.update(Vectors(stack, arrays, turned=False), arrays).numpy()
        np.testing.assert_allclose(found, update_of(method, stack), rtol=0, atol=1e-10)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["esm", "esm_vit"])
def test_the_contract_is_kept_with_the_norms_of_all_layers(name: str) -> None:
    assert_contract(resolve_method(name), weights=(0.5, 1.0, 1.7))
