"""What a recipe's `keep` does to a merge, and where it must not get lost."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

from agentmerge import merge, sweep
from agentmerge.deltas.pack import pack
from agentmerge.engine.preflight import planned
from agentmerge.files.save import save
from agentmerge.recipe import Recipe
from agentmerge.record import MergeRecord
from agentmerge.testing import Sources, make_agents, random_base, random_gram, read_checkpoint, write_checkpoint
from tests.sources.adapters import lora, matrices, put_adapter, summed

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from agentmerge.tensors import Array

pytestmark = pytest.mark.usefixtures("unsynced")
WUDI = {"name": "wudi", "solver": "exact"}
EXPERTS = "model.layers.0.mlp.experts.gate_up_proj.weight"


def linear(sources: Sources) -> dict[str, tuple[int, ...]]:
    return {name: array.shape for name, array in read_checkpoint(sources.base).items() if name.endswith("proj.weight")}


def measure(sources: Sources, out: Path, names: Sequence[str] | None = None, seed: int = 3) -> Path:
    rng, shapes = np.random.default_rng(seed), linear(sources)
    save(out, {name: random_gram(rng, (shapes[name][-1],) * 2) for name in names or sorted(shapes)})
    return out


def recipe(sources: Sources, keep: Path | None, method: Any = "wudi_auto", **sections: Any) -> dict[str, Any]:
    found: dict[str, Any] = sources.recipe(method, **{"output": {"dtype": "float32"}, **sections})
    return found if keep is None else {**found, "keep": str(keep)}


def moved(sources: Sources, out: Path) -> dict[str, Array]:
    """Merged - base, float64."""
    found, base = read_checkpoint(out), read_checkpoint(sources.base)
    return {name: np.float64(found[name]) - np.float64(base[name]) for name in base}


def direct(sources: Sources, name: str, gram: Array, keep: float) -> Array:
    """M of wudi's exact solution with `keep`, by LU from the numbers of the files, float64."""
    base = np.float64(read_checkpoint(sources.base)[name])
    taus = [np.float64(read_checkpoint(path)[name]) - base for path in sources.agents.values()]
    parts = [tau.T @ tau / (tau**2).sum() for tau in taus]
    pull = 0.01 * len(taus) / base.shape[1] * np.eye(base.shape[1])
    right = sum(tau @ part for tau, part in zip(taus, parts, strict=True)) + sum(taus) @ pull
    return np.linalg.solve(sum(parts) + keep * gram / np.trace(gram) + pull, right.T).T


@pytest.mark.parametrize("dtype", ["BF16", "F16", "F32"])
def test_the_numbers_are_those_of_the_formula_whatever_dtype_the_base_has(tmp_path: Path, dtype: str) -> None:
    names = {"model.layers.0.self_attn.q_proj.weight": (24, 31), "model.layers.0.mlp.down_proj.weight": (9, 40)}
    sources = make_agents(tmp_path / "in", base=random_base(0, names, dict.fromkeys(names, dtype)))
    keep = measure(sources, tmp_path / "keep")
    merge(recipe(sources, keep, {**WUDI, "keep": 0.7}), tmp_path / "out")
    found, grams = moved(sources, tmp_path / "out"), read_checkpoint(keep)
    for name in names:
        expected = direct(sources, name, grams[name], 0.7)
        np.testing.assert_allclose(found[name], expected, rtol=0, atol=1e-7 + 1e-5 * np.abs(expected).max())


def test_a_recipe_that_says_what_to_keep_is_merged_with_it(tiny: Sources, tmp_path: Path) -> None:
    keep = measure(tiny, tmp_path / "keep")
    with planned(Recipe.parse(recipe(tiny, keep))) as plan:
        assert "keep" in plan.identities()
        assert {job.name for job in plan.jobs if job.keep} == set(linear(tiny))
    record = merge(recipe(tiny, keep, WUDI), tmp_path / "out")
    assert record.recipe["method"]["keep"] == 0.1
    merge(recipe(tiny, None, WUDI), tmp_path / "plain")
    found, plain = moved(tiny, tmp_path / "out"), moved(tiny, tmp_path / "plain")
    grams = read_checkpoint(keep)
    for name in linear(tiny):
        spent = [float(np.trace(update @ grams[name] @ update.T)) for update in (found[name], plain[name])]
        assert spent[0] < spent[1], name
    norms = [name for name in found if name not in linear(tiny)]
    assert all(np.array_equal(found[name], plain[name]) for name in norms)


def test_regmean_counts_the_base_by_the_same_tenth(tiny: Sources, tmp_path: Path) -> None:
    keep, given = measure(tiny, tmp_path / "keep"), recipe(tiny, tmp_path / "keep", {"name": "regmean", "scaling": 1.0})
    for seed, name in enumerate(tiny.agents, 10):
        grams = measure(tiny, tmp_path / f"grams-{name}", seed=seed)
        given["agents"][name] = {"source": str(tiny.agents[name]), "grams": str(grams)}
    assert merge(given, tmp_path / "out").recipe["method"]["keep"] == 0.1
    found, base = moved(tiny, tmp_path / "out"), read_checkpoint(tiny.base)
    for name in linear(tiny):
        right, system = np.zeros(base[name].shape), 0.1 * read_checkpoint(keep)[name]
        for agent, path in tiny.agents.items():
            gram = read_checkpoint(tmp_path / f"grams-{agent}")[name]
            right += (np.float64(read_checkpoint(path)[name]) - np.float64(base[name])) @ gram
            system = system + gram
        expected = np.linalg.solve(system, right.T).T
        np.testing.assert_allclose(found[name], expected, rtol=0, atol=1e-4 * np.abs(expected).max())


def test_a_merge_is_done_again_from_its_record(tiny: Sources, tmp_path: Path) -> None:
    record = merge(recipe(tiny, measure(tiny, tmp_path / "keep"), {**WUDI, "keep": 0.4}), tmp_path / "out")
    assert record.sources["keep"]["source"] == str(tmp_path / "keep")
    assert "0.4" in (tmp_path / "out" / "README.md").read_text()
    merge(MergeRecord.load(tmp_path / "out").recipe, tmp_path / "again")
    files = [(tmp_path / name / "model.safetensors").read_bytes() for name in ("out", "again")]
    assert files[0] == files[1]


def test_a_rule_can_keep_less_and_0_is_as_without(tiny: Sources, tmp_path: Path) -> None:
    keep = measure(tiny, tmp_path / "keep")
    rules = [{"tensors": "*q_proj*", "keep": 0}]
    merge(recipe(tiny, keep, WUDI, rules=rules), tmp_path / "out")
    merge(recipe(tiny, None, WUDI), tmp_path / "plain")
    merge(recipe(tiny, keep, WUDI), tmp_path / "kept")
    found, plain, kept = (read_checkpoint(tmp_path / name) for name in ("out", "plain", "kept"))
    for name in linear(tiny):
        expected, other = (plain, kept) if "q_proj" in name else (kept, plain)
        assert np.array_equal(found[name], expected[name]), name
        assert not np.array_equal(found[name], other[name]), name


@pytest.mark.parametrize("method", ["wudi_auto", WUDI])
def test_a_sweep_begins_at_0_which_is_as_without(method: Any, tiny: Sources, tmp_path: Path) -> None:
    keep = measure(tiny, tmp_path / "keep")
    sweep(recipe(tiny, keep, method), "keep", [0, 0.3], tmp_path / "sweep")
    merge(recipe(tiny, None, method), tmp_path / "plain")
    settings = {"name": method} if isinstance(method, str) else method
    merge(recipe(tiny, keep, {**settings, "keep": 0.3}), tmp_path / "kept")
    for swept, alone in (("keep=0", "plain"), ("keep=0.3", "kept")):
        found, expected = (read_checkpoint(path) for path in (tmp_path / "sweep" / swept, tmp_path / alone))
        assert all(np.array_equal(found[name], expected[name]) for name in expected), swept


def test_0_in_a_recipe_without_asks_for_nothing(tiny: Sources, tmp_path: Path) -> None:
    assert Recipe.parse(recipe(tiny, None, {**WUDI, "keep": 0})).method.reads == ()


def test_put_onto_another_checkpoint_it_is_the_same_change(tiny: Sources, tmp_path: Path) -> None:
    keep, ground = measure(tiny, tmp_path / "keep"), {n: 3 * a for n, a in read_checkpoint(tiny.base).items()}
    save(tmp_path / "onto", ground)
    (tmp_path / "onto" / "config.json").write_bytes((tiny.base / "config.json").read_bytes())
    merge(recipe(tiny, keep, WUDI), tmp_path / "out")
    merge({**recipe(tiny, keep, WUDI), "onto": str(tmp_path / "onto")}, tmp_path / "put")
    change, put = moved(tiny, tmp_path / "out"), read_checkpoint(tmp_path / "put")
    for name in linear(tiny):
        np.testing.assert_allclose(put[name] - np.float64(ground[name]), change[name], rtol=0, atol=1e-7)


def test_adapters_and_packed_deltas_are_merged_as_the_checkpoints_that_they_make(tiny: Sources, tmp_path: Path) -> None:
    keep, base = measure(tiny, tmp_path / "keep"), read_checkpoint(tiny.base)
    name = "model.layers.0.self_attn.q_proj.weight"
    (rows, columns), module = base[name].shape, name.removesuffix(".weight")
    a, b = matrices(1, rows, columns, 4)
    whole = {**base, name: summed(base[name], a, b, 2.0).astype(np.float32).astype(base[name].dtype)}
    write_checkpoint(tmp_path / "whole", whole)
    put_adapter(tmp_path / "adapter", lora(module, a, b))
    pack(tiny.base, tiny.agents["tool"], tmp_path / "tool.safetensors")
    made = {"adapter": str(tmp_path / "whole"), "tool": str(tiny.agents["tool"])}
    packed = {"adapter": str(tmp_path / "adapter"), "tool": str(tmp_path / "tool.safetensors")}
    for out, agents in (("made", made), ("packed", packed)):
        merge({**recipe(tiny, keep), "agents": agents}, tmp_path / out)
    found, expected = read_checkpoint(tmp_path / "packed"), read_checkpoint(tmp_path / "made")
    assert all(np.array_equal(found[tensor], expected[tensor]) for tensor in expected)


# wrapped


def test_dare_that_drops_nothing_is_what_it_wraps(tiny: Sources, tmp_path: Path) -> None:
    keep, inner = measure(tiny, tmp_path / "keep"), {**WUDI, "keep": 3.0}
    merge(recipe(tiny, keep, {"name": "dare", "density": 1.0, "then": inner}), tmp_path / "dare")
    merge(recipe(tiny, keep, inner), tmp_path / "plain")
    found, expected = read_checkpoint(tmp_path / "dare"), read_checkpoint(tmp_path / "plain")
    assert all(np.array_equal(found[name], expected[name]) for name in expected)


def test_calibrate_scales_the_kept_merge_of_each_matrix(tiny: Sources, tmp_path: Path) -> None:
    keep, inner = measure(tiny, tmp_path / "keep"), {**WUDI, "keep": 3.0}
    merge(recipe(tiny, keep, {"name": "calibrate", "per": "matrix", "then": inner}), tmp_path / "out")
    found, grams = moved(tiny, tmp_path / "out"), read_checkpoint(keep)
    for name in linear(tiny):
        update = direct(tiny, name, grams[name], 3.0)
        scale = (found[name] * update).sum() / (update**2).sum()
        np.testing.assert_allclose(found[name], scale * update, rtol=0, atol=1e-4 * np.abs(found[name]).max())


def test_svc_scales_the_directions_of_the_kept_merge(tiny: Sources, tmp_path: Path) -> None:
    keep = measure(tiny, tmp_path / "keep")
    merge(recipe(tiny, keep, {"name": "svc", "then": {**WUDI, "keep": 3.0}}), tmp_path / "out")
    found, base, grams = moved(tiny, tmp_path / "out"), read_checkpoint(tiny.base), read_checkpoint(keep)
    for name in linear(tiny):
        left, values, right = np.linalg.svd(direct(tiny, name, grams[name], 3.0), full_matrices=False)
        total = np.zeros_like(values)
        for path in tiny.agents.values():
            along = left.T @ (np.float64(read_checkpoint(path)[name]) - np.float64(base[name]))
            total += np.clip(values * (along * right).sum(1) / np.clip((along**2).sum(1), 1e-12, None), 1.0, None)
        expected = (left * (len(tiny.agents) / total * values)) @ right
        np.testing.assert_allclose(found[name], expected, rtol=0, atol=1e-3 * np.abs(expected).max())


# layers of which something or nothing was measured


def test_a_layer_without_is_merged_without_and_told(tiny: Sources, tmp_path: Path) -> None:
    one, *rest = sorted(linear(tiny))
    keep = measure(tiny, tmp_path / "keep", rest)
    record = merge(recipe(tiny, keep, WUDI), tmp_path / "out")
    (told,) = [note for note in record.warnings if "keep" in note]
    assert f"nothing was measured of 1 layers, which are merged without it: {one}" in told
    merge(recipe(tiny, None, WUDI), tmp_path / "plain")
    assert np.array_equal(read_checkpoint(tmp_path / "out")[one], read_checkpoint(tmp_path / "plain")[one])


@pytest.mark.parametrize("turned", [False, True])
def test_experts_in_one_tensor_have_a_matrix_each_or_none(tmp_path: Path, *, turned: bool) -> None:
    query = "model.layers.0.self_attn.q_proj.weight"
    sources = make_agents(tmp_path / "in", base=random_base(0, {EXPERTS: (2, 12, 20), query: (6, 8)}))
    side, rng = 12 if turned else 20, np.random.default_rng(1)
    grams = {EXPERTS: random_gram(rng, (2, side, side)), query: random_gram(rng, (8, 8))}
    save(tmp_path / "all", grams)
    save(tmp_path / "some", {query: grams[query]})
    method = {**WUDI, "keep": 2.0, **({"transposed": [EXPERTS]} if turned else {})}
    merge(recipe(sources, tmp_path / "all", method), tmp_path / "kept")
    told = merge(recipe(sources, tmp_path / "some", method), tmp_path / "out").warnings
    assert any(f"nothing was measured of 1 layers, which are merged without it: {EXPERTS}" in note for note in told)
    merge(recipe(sources, None, {**method, "keep": None}), tmp_path / "plain")
    kept, found, plain = (moved(sources, tmp_path / name)[EXPERTS] for name in ("kept", "out", "plain"))
    assert np.array_equal(found, plain)
    for expert, gram in enumerate(grams[EXPERTS]):
        spent = []
        for update in (kept[expert], plain[expert]):
            inputs_last = update.T if turned else update
            spent.append(float(np.trace(inputs_last @ gram @ inputs_last.T)))
        assert spent[0] < 0.9 * spent[1]


@pytest.mark.parametrize(
    "sections", [{"method": {**WUDI, "linear": ["nothing*"]}}, {"rules": [{"tensors": "*proj*", "take": "base"}]}]
)
def test_where_nothing_can_be_kept_that_is_told(sections: dict[str, Any], tiny: Sources, tmp_path: Path) -> None:
    record = merge({**recipe(tiny, measure(tiny, tmp_path / "keep")), **sections}, tmp_path / "out")
    assert any("keep: nothing is kept, as no linear layer is merged" in note for note in record.warnings)
