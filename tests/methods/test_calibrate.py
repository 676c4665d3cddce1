"""Calibrate reaches the retention that was asked for, tells it, and says where the output cast undid it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

from agentmerge import Recipe, merge, probe
from agentmerge.errors import DataError, RecipeError
from agentmerge.methods import calibrate, interference
from agentmerge.methods.base import before_merging
from agentmerge.methods.calibrate import Calibrate
from agentmerge.methods.ram import Ram
from agentmerge.methods.registry import resolve_method
from agentmerge.methods.task_arithmetic import TaskArithmetic
from agentmerge.survey.statistic import Survey
from agentmerge.testing import (
    Sources,
    assert_contract,
    assert_same_bits,
    make_agents,
    random_base,
    random_stack,
    read_checkpoint,
    survey_of,
    write_checkpoint,
)

if TYPE_CHECKING:
    from pathlib import Path

    from agentmerge.tensors import Array

CASES: tuple[tuple[Any, float], ...] = (
    ("ram", 1.0),
    ({"name": "ram_plus", "rescale": "auto", "shared": "elect"}, 1.2),
    ("ties", 1.0),
    ("task_arithmetic", 1.2),
    ({"name": "dare", "then": {"name": "ram_plus"}}, 1.0),
    ("fisher", 0.8),
)
AGENTS = ("code", "memory", "tool")


def retention(base: Array, merged: Array, agent: Array) -> float:
    tau = agent.astype("f8") - base
    return float(((merged.astype("f8") - base) * tau).sum() / (tau**2).sum())


@pytest.mark.parametrize(("inner", "target"), CASES, ids=str)
def test_the_mean_retention_of_the_float32_output_is_the_target(
    inputs: Path, tmp_path: Path, golden_recipe: Any, whole: Any, inner: Any, target: float
) -> None:
    """Measured from the files alone, and told by the record: before the scale, after it, and as stored."""
    plain = merge(golden_recipe(inputs, inner), tmp_path / "plain")
    method = {"name": "calibrate", "retention": target, "then": inner}
    record = merge(golden_recipe(inputs, method), tmp_path / "out")
    base, agents = whole(inputs / "base"), [whole(inputs / name) for name in AGENTS]
    before = [retention(base, whole(tmp_path / "plain"), agent) for agent in agents]
    stored = [retention(base, whole(tmp_path / "out"), agent) for agent in agents]
    assert np.mean(stored) == pytest.approx(target, abs=1e-6)
    told = record.learned["retention"]
    assert all(tuple(values) == AGENTS for values in told.values())
    np.testing.assert_allclose(list(told["before"].values()), before, rtol=1e-9)
    np.testing.assert_allclose(list(told["stored"].values()), stored, rtol=1e-9)
    np.testing.assert_allclose(list(told["after"].values()), np.array(before) * target / np.mean(before), rtol=1e-9)
    assert record.learned["calibration_scale"] == pytest.approx(target / np.mean(before), rel=1e-12)
    assert record.timing.folds == plain.timing.folds + 1
    assert not any("calibrate" in warning for warning in record.warnings)
    assert {key: record.learned[key] for key in plain.learned.keys() - {"retention"}} == {
        key: value for key, value in plain.learned.items() if key != "retention"
    }
    assert not any("output cast left" in warning for warning in record.warnings)


@pytest.mark.parametrize("inner", ["ram", {"name": "wudi", "solver": "exact"}], ids=str)
def test_one_factor_per_matrix_brings_each_tensor_to_the_target(
    inputs: Path, tmp_path: Path, golden_recipe: Any, inner: Any
) -> None:
    """Whole matrices, and all that is merged in blocks; the same bytes for any workers and blocks."""
    recipe = golden_recipe(inputs, {"name": "calibrate", "per": "matrix", "retention": 1.1, "then": inner})
    record = merge(recipe, tmp_path / "out")
    merge({**recipe, "run": {"workers": 3, "block_size": 4096}}, tmp_path / "other")
    base, found, *agents = (
        read_checkpoint(path) for path in (inputs / "base", tmp_path / "out", *(inputs / name for name in AGENTS))
    )
    for name, values in read_checkpoint(tmp_path / "other").items():
        assert_same_bits(values, found[name], name)
        kept = [
            retention(base[name].astype("f8"), values, agent[name])
            for agent in agents
            if (agent[name].astype("f8") != base[name].astype("f8")).any()
        ]
        if kept:
            assert np.mean(kept) == pytest.approx(1.1, abs=1e-4), name
    assert set(record.learned["retention"]) == {"stored"}
    assert record.learned["calibration_scale"] is None


def test_one_factor_per_matrix_is_one_for_every_expert(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each as if it were a tensor of its own, solved once."""
    rng, name = np.random.default_rng(0), "model.layers.0.mlp.experts.up_proj.weight"
    base = rng.standard_normal((5, 24, 40)).astype(np.float32)
    agents = {n: base + 1e-3 * rng.standard_normal(base.shape).astype(np.float32) for n in "abc"}
    agents["b"][2], agents["c"][2:4] = base[2], base[2:4]
    solved: list[int] = []
    solve = interference.solve
    monkeypatch.setattr(interference, "solve", lambda *a, **k: solved.append(1) or solve(*a, **k))
    monkeypatch.setattr(calibrate, "AGAIN", 0)
    method = {"name": "calibrate", "per": "matrix", "then": {"name": "wudi", "solver": "exact", "device": "cpu"}}

    def merged(folder: str, tensors: dict[str, Array], theirs: dict[str, dict[str, Array]]) -> dict[str, Array]:
        write_checkpoint(tmp_path / folder / "base", tensors)
        for agent, values in theirs.items():
            write_checkpoint(tmp_path / folder / agent, values)
        recipe = {
            "base": str(tmp_path / folder / "base"),
            "agents": {agent: str(tmp_path / folder / agent) for agent in theirs},
            "method": method,
        }
        merge(recipe, tmp_path / folder / "out")
        return read_checkpoint(tmp_path / folder / "out")

    together = merged("stack", {name: base}, {n: {name: values} for n, values in agents.items()})[name]
    assert len(solved) == 4
    singly = [f"model.layers.{i}.mlp.up_proj.weight" for i in range(5)]
    apart = merged(
        "apart",
        dict(zip(singly, base, strict=True)),
        {n: dict(zip(singly, values, strict=True)) for n, values in agents.items()},
    )
    for i, key in enumerate(singly):
        assert_same_bits(together[i], apart[key], key)


# by hand


def test_two_disjoint_agents_averaged_are_doubled(stack_of: Any, merged: Any) -> None:
    stack = stack_of([1, 1, -0.0], [[3, 1, -0.0], [1, 5, -0.0]])
    found = merged(Calibrate(then=TaskArithmetic(scale=0.5)), stack)
    assert_same_bits(found, np.array([3, 5, -0.0], "f4"), "retention 1/2 each, so s = 2")
    half = merged(Calibrate(retention=0.5, then=TaskArithmetic(scale=1.0)), stack)
    np.testing.assert_array_equal(half, [2, 3, 0])


def test_the_mean_is_over_agents_not_over_elements(stack_of: Any) -> None:
    """RAM keeps all of b, and of a: <(2, 1, 0), (2, 2, 0)> / 8 = 3/4. So s = 1 / (7/8)."""
    stack = stack_of([0, 0, 0, 0], [[2, 2, 0, 0], [0, 0, 0, 0], [0, 0, 8, 1]])
    inner = Ram(name="ram", shared_power=1)
    stack = stack_of([0, 0, 0, 0], [[2, 2, 0, 0], [0, 0, 8, 1]])
    halved = Calibrate(then=inner)
    assert halved.scale(survey_of(halved, [stack])) == 1
    mixed = stack_of([0, 0, 0, 0], [[2, 2, 0, 0], [0, -2, 0, 4]])
    method = Calibrate(then=inner)  # the second element merges to 0: 4 / 8 of a and 16 / 20 of b
    assert method.scale(survey_of(method, [mixed])) == pytest.approx(1 / ((4 / 8 + 16 / 20) / 2))


def test_an_agent_that_changed_nothing_takes_no_part(tmp_path: Path) -> None:
    base = {"w": np.zeros(4, np.float32)}
    paths = {
        "a": write_checkpoint(tmp_path / "a", {"w": np.array([2, 0, 0, 0], "f4")}),
        "b": write_checkpoint(tmp_path / "b", {"w": np.array([0, 4, 0, 0], "f4")}),
        "idle": write_checkpoint(tmp_path / "idle", base),
    }
    sources = Sources(write_checkpoint(tmp_path / "base", base), paths)
    recipe = sources.recipe("calibrate", inputs={"unchanged": "allow"})  # around task arithmetic at 1/3
    record = merge(recipe, tmp_path / "out")
    np.testing.assert_allclose(read_checkpoint(tmp_path / "out")["w"], [2, 4, 0, 0], rtol=1e-6)
    assert record.learned["retention"]["before"]["idle"] is None
    assert record.learned["retention"]["stored"]["idle"] is None
    assert record.learned["calibration_scale"] == pytest.approx(3)


@pytest.mark.usefixtures("either_way")
def test_where_no_agent_changed_anything_there_is_nothing_to_scale(stack_of: Any, merged: Any) -> None:
    stack = stack_of([1, -0.0], [[1, -0.0], [1, -0.0]])
    method = Calibrate(retention=1.5, then=Ram())
    assert method.scale(survey_of(method, [stack])) == 1
    assert_same_bits(merged(method, stack), stack.base, "base")


def test_a_calibrated_merge_does_not_depend_on_the_inner_scale(stack_of: Any, merged: Any) -> None:
    stack = random_stack(2, elements=1000)
    found = [merged(Calibrate(then=TaskArithmetic(scale=scale)), stack) for scale in (0.25, 0.5, 2.0)]
    for other in found[1:]:
        np.testing.assert_allclose(other, found[0], rtol=1e-5, atol=1e-6)


# what the output cast does


def one_step_agents(folder: Path) -> Sources:
    """Two agents that changed other elements, each by one bfloat16 step: what RL at a low learning rate does."""
    base = random_base(0, {"w": (300, 101)})
    bits, owner = base["w"].view(np.uint16), np.random.default_rng(1).integers(0, 4, (300, 101))
    agents = {name: {"w": (bits + (owner == t)).astype(np.uint16).view(base["w"].dtype)} for t, name in enumerate("ab")}
    paths = {name: write_checkpoint(folder / name, tensors) for name, tensors in agents.items()}
    return Sources(write_checkpoint(folder / "base", base), paths)


@pytest.mark.usefixtures("either_way")
def test_nearest_bfloat16_rounding_undoes_the_scale_and_the_record_says_by_how_much(tmp_path: Path) -> None:
    """1.3 steps round to one step, everywhere."""
    sources = one_step_agents(tmp_path / "in")
    method = {"name": "calibrate", "retention": 1.3, "then": "ram"}
    record = merge(sources.recipe(method), tmp_path / "out")
    assert record.learned["retention"]["after"] == pytest.approx({"a": 1.3, "b": 1.3}, rel=2e-5)
    assert record.learned["retention"]["stored"] == pytest.approx({"a": 1.0, "b": 1.0}, abs=1e-3)
    (warning,) = record.warnings
    assert warning.startswith(
        "calibrate: the output cast left a mean retention of 1.000 instead of 1.3; use --rounding"
    )


@pytest.mark.parametrize("output", [{"rounding": "stochastic"}, {"dtype": "float32"}], ids=str)
def test_stochastic_rounding_and_float32_keep_it_without_a_warning(tmp_path: Path, output: dict[str, str]) -> None:
    sources = one_step_agents(tmp_path / "in")
    method = {"name": "calibrate", "retention": 1.3, "then": "ram"}
    record = merge(sources.recipe(method, output=output), tmp_path / "out")
    assert record.learned["retention"]["stored"] == pytest.approx({"a": 1.3, "b": 1.3}, rel=0.02)
    assert record.warnings == []


# refusals


@pytest.mark.parametrize(("scale", "mean"), [(0.0, "0"), (-1.0, "-1")])
def test_a_merge_that_moves_nowhere_or_backwards_is_refused(tmp_path: Path, scale: float, mean: str) -> None:
    sources = one_step_agents(tmp_path / "in")
    method = {"name": "calibrate", "then": {"name": "task_arithmetic", "scale": scale}}
    with pytest.raises(DataError, match=rf"mean retention under 'task_arithmetic' is {mean}, expected more than 0"):
        merge(sources.recipe(method), tmp_path / "out")
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize("target", [0, -1])
def test_a_target_of_nothing_is_refused(tiny: Sources, target: float) -> None:
    with pytest.raises(RecipeError, match=r"method\.retention: Input should be greater than 0"):
        Recipe.parse(tiny.recipe({"name": "calibrate", "retention": target}))


# questions and records


def test_it_asks_what_the_inner_method_asks_and_then_once_more() -> None:
    stack, survey, kinds = random_stack(0), Survey(), []
    method = Calibrate(then=resolve_method("ties"))
    while questions := before_merging(method.ask(survey)):
        (question,) = questions
        kinds.append(type(question).__name__)
        survey.add(question, "w", question.observe(stack))
    assert kinds == ["MagnitudeHigh", "MagnitudeLow", "ElectedSigns", "InnerRetention"]


def test_two_targets_share_one_question_and_two_inner_methods_do_not() -> None:
    survey, inner = survey_of(Ram(), [random_stack(0)]), Ram()
    (low,), (high,), (other,) = (
        before_merging(method.ask(survey))
        for method in (
            Calibrate(then=inner),
            Calibrate(then=inner, retention=1.2),
            Calibrate(then=Ram(name="ram")),
        )
    )
    assert low == high
    assert low.key != other.key


def test_the_scale_of_the_record_is_lambda_times_s(tiny: Sources, tmp_path: Path) -> None:
    record = merge(tiny.recipe({"name": "calibrate", "then": "ram_plus"}), tmp_path / "out")
    inner = probe(tiny.recipe("ram_plus")).survey
    for name, agent in record.survey.agents.items():
        assert agent.scale == pytest.approx((inner.agents[name].scale or 0) * record.learned["calibration_scale"])


@pytest.mark.parametrize("inner", ["ram", "ram_plus", "ties", {"name": "dare", "then": "ram_plus"}], ids=str)
def test_a_probe_folds_only_once_and_so_tells_no_scale_that_a_second_fold_would_find(tiny: Sources, inner: Any) -> None:
    seen = probe(tiny.recipe({"name": "calibrate", "then": inner})).survey
    for name, agent in seen.agents.items():
        assert (agent.scale is None) == (inner != "ram"), name


def test_a_saved_survey_goes_on_to_the_same_bytes(tiny: Sources, tmp_path: Path) -> None:
    method = {"name": "calibrate", "then": "ram_plus"}
    plain = merge(tiny.recipe(method), tmp_path / "plain")
    probe(tiny.recipe(method)).save(tmp_path / "survey.json")
    record = merge(tiny.recipe(method, run={"survey": str(tmp_path / "survey.json")}), tmp_path / "again")
    assert (record.learned, record.survey) == (plain.learned, plain.survey)
    weights = [(tmp_path / out / "model.safetensors").read_bytes() for out in ("plain", "again")]
    assert weights[0] == weights[1]


@pytest.mark.parametrize("inner", ["ram", "ties", "task_arithmetic", {"name": "dare", "density": 0.9}], ids=str)
def test_the_contract_is_kept_around_any_method(inner: Any) -> None:
    """That agents equal to the base give the base is part of it: there is no retention, so nothing is scaled."""
    assert_contract(Calibrate(retention=1.1, then=resolve_method(inner)), weights=(0.5, 1.0, 1.7))
    assert_contract(Calibrate(retention=1.1, per="matrix", then=resolve_method(inner)))


def test_tensors_of_several_blocks_are_summed_in_one_order(tmp_path: Path) -> None:
    sources = make_agents(tmp_path / "in", base=random_base(1, {"wide": (3, 40_001)}))
    method = {"name": "calibrate", "then": "ram_plus"}
    told = []
    for block_size, workers in ((4096, 1), (4096, 4), (1_000_000, 2)):
        run = {"block_size": block_size, "workers": workers}
        told.append(merge(sources.recipe(method, run=run), tmp_path / f"{block_size}-{workers}").learned)
    assert told[0] == told[1] == told[2]


def test_calibrate_around_wudi_sees_a_large_matrix_whole(tmp_path):
    base = {
        "model.layers.0.mlp.up_proj.weight": np.random.default_rng(0).normal(0, 0.02, (300, 300)).astype(np.float32)
    }
    sources = make_agents(tmp_path / "in", base=base, agents=2, densities=(0.4, 0.4))
    method = {"name": "calibrate", "then": {"name": "wudi", "steps": 3}}
    record = merge({**sources.recipe("ram"), "method": method}, tmp_path / "out")
    stored = record.learned["retention"]["stored"]
    assert sum(stored.values()) / 2 == pytest.approx(1.0, abs=1e-6)
