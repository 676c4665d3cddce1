"""A wrapper hands every hook on: what the inner method says is lost nowhere."""

from __future__ import annotations

import inspect
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
import pytest

from agentmerge import Recipe, kernels, merge, probe, sweep
from agentmerge.errors import RecipeError
from agentmerge.methods.base import Context, MergeMethod
from agentmerge.methods.making import Making
from agentmerge.methods.registry import known_methods, resolve_method
from agentmerge.methods.wrapper import Wrapper
from agentmerge.testing import (
    Sources,
    assert_contract,
    assert_same_tensors,
    make_agents,
    random_base,
    random_gram,
    read_checkpoint,
    write_checkpoint,
)

if TYPE_CHECKING:
    from agentmerge.survey.statistic import Survey

NO_HOOKS = {"name", "presets", "about", "aliases", "names", "parse", "varied"}
"""What a method has beside its hooks: its name, what is said of its class, and how one is made of settings."""
HOOKS = {
    name: member
    for name, member in vars(MergeMethod).items()
    if not name.startswith("_") and name not in NO_HOOKS and (callable(member) or isinstance(member, property))
}


def answer(name: str) -> Any:
    """A hook that gives its own name and what it was given."""
    if isinstance(HOOKS[name], property):
        return property(lambda self: (name,))
    return lambda self, *given: (name, *given)


class Inner(MergeMethod):
    """Answers every hook, those that will be added, too."""

    name: Literal["inner"] = "inner"
    bound: Any = None

    def bind(self, context: Context) -> Inner:
        return self.model_copy(update={"bound": context})

    for _hook in HOOKS.keys() - {"bind"}:
        locals()[_hook] = answer(_hook)
    del _hook


class Outer(Wrapper):
    """Changes nothing but the survey."""

    name: Literal["outer"] = "outer"

    def _inner(self, survey: Survey) -> Any:
        return "inner view of", survey


def test_the_hooks_are_those_of_the_house() -> None:
    assert list(HOOKS) == ["bind", "reads", "overlap", "work", "ask", "merge", "loops", "kernel", "told", "dilution"]


@pytest.mark.parametrize("name", sorted(HOOKS.keys() - {"bind"}))
def test_every_hook_is_the_inner_methods_with_the_inner_view_of_the_survey(name: str) -> None:
    assert name in vars(Wrapper), f"Wrapper does not hand on {name}"
    outer = Outer(then=Inner())
    if isinstance(HOOKS[name], property):
        assert getattr(outer, name) == (name,)
        return
    given = list(inspect.signature(HOOKS[name]).parameters)[1:]
    seen = [("inner view of", word) if word == "survey" else word for word in given]
    assert getattr(outer, name)(*given) == (name, *seen)


def test_binding_binds_the_inner_method() -> None:
    context = Context(3, {"code": 1.0})
    assert Outer(then=Outer(then=Inner())).bind(context).then.then.bound == context


@pytest.mark.parametrize("name", ["dare", "calibrate"])
def test_the_wrappers_override_only_what_differs(name: str) -> None:
    """What they say nothing of comes from Wrapper, so that it can't be lost."""
    expected = {"ask", "merge", "work", "loops", "kernel", "told", "dilution"}
    expected |= {"dare": {"bind"}, "calibrate": set()}[name]
    own = type(resolve_method(name))
    between = vars(Making).keys() if issubclass(own, Making) else set()
    assert (vars(own).keys() | between) & HOOKS.keys() == expected


# wrappers around wrappers


def one_step_agents(folder: Path) -> Sources:
    """Two agents that changed other elements, each by one bfloat16 step."""
    base = random_base(0, {"w": (300, 101)})
    bits, owner = base["w"].view(np.uint16), np.random.default_rng(1).integers(0, 4, (300, 101))
    agents = {name: {"w": (bits + (owner == t)).astype(np.uint16).view(base["w"].dtype)} for t, name in enumerate("ab")}
    paths = {name: write_checkpoint(folder / name, tensors) for name, tensors in agents.items()}
    return Sources(write_checkpoint(folder / "base", base), paths)


@pytest.mark.usefixtures("either_way")
@pytest.mark.parametrize("target", [0.4, 0.8, 1.3])
def test_dare_at_density_1_tells_everything_that_calibrate_tells(tmp_path: Path, target: float) -> None:
    """Its warning that rounding undid the scale, too."""
    sources, inner = one_step_agents(tmp_path / "in"), {"name": "calibrate", "retention": target, "then": "ram"}
    plain = merge(sources.recipe(inner), tmp_path / "plain")
    wrapped = merge(sources.recipe({"name": "dare", "density": 1, "then": inner}), tmp_path / "wrapped")
    assert wrapped.warnings == plain.warnings
    assert (wrapped.learned, wrapped.survey, wrapped.rounding) == (plain.learned, plain.survey, plain.rounding)
    assert any("the output cast left a mean retention" in warning for warning in wrapped.warnings)
    assert_same_tensors(read_checkpoint(tmp_path / "wrapped"), read_checkpoint(tmp_path / "plain"))


@pytest.mark.usefixtures("either_way")
@pytest.mark.parametrize("inner", ["ram", "ram_plus", "task_arithmetic", "ties"])
def test_dare_around_calibrate_scales_the_merge_of_the_dropped_task_vectors(
    tiny: Sources, tmp_path: Path, inner: str
) -> None:
    """The scale is that of the dropped task vectors; what is stored is not compared with them."""
    recipe = tiny.recipe({"name": "dare", "density": 0.5, "then": {"name": "calibrate", "then": inner}})
    record = merge(recipe, tmp_path / "out")
    retention = record.learned["retention"]
    assert retention.keys() == {"before", "after"}
    assert sum(retention["after"].values()) / 3 == pytest.approx(1)
    scales = {agent.scale for agent in record.survey.agents.values()}
    assert (scales == {record.learned["calibration_scale"]}) == (inner == "ram")
    assert record.warnings == []
    assert Recipe.parse(record.recipe) == Recipe.parse(recipe)
    assert probe(recipe).survey.elements == record.survey.elements


def test_dare_around_calibrate_keeps_the_contract() -> None:
    assert_contract(resolve_method({"name": "dare", "density": 0.6, "then": {"name": "calibrate", "then": "ram"}}))


def test_calibrate_around_dare_around_calibrate_compares_only_its_own_result(tmp_path: Path) -> None:
    inner = {"name": "dare", "density": 0.5, "then": {"name": "calibrate", "retention": 0.5, "then": "ram"}}
    sources = one_step_agents(tmp_path / "in")
    record = merge(sources.recipe({"name": "calibrate", "then": inner}, output={"dtype": "float32"}), tmp_path / "out")
    assert record.warnings == []
    assert sum(record.learned["retention"]["stored"].values()) / 2 == pytest.approx(1, abs=1e-6)


SETTINGS = {
    "dare": ("density", 0.7),
    "calibrate": ("retention", 0.8),
    "svc": ("alpha", 0.5),
    "disentangle": ("alpha", 0.2),
}
"""Of each wrapper one setting, and what it is set to."""
NESTINGS = ["dare", "calibrate", "dare calibrate", "calibrate dare", "dare dare", "calibrate calibrate"]
NESTINGS += ["dare calibrate dare", "calibrate dare calibrate"]
FEW = {"nearswap"}
"""Takes no two agents."""
SAME = {"iso_c", "iso_cts", "tsv_m", "esm_vit"}
SAME |= {"breadcrumbs_ties", "della_linear", "slerp", "multislerp", "model_stock", "sce", "breadcrumbs"}
"""Others ask for the same, and merge by the same loops or share all but one function."""
INNER = sorted(known_methods().keys() - SETTINGS.keys() - FEW - SAME)
ALIKE = {"ram", "ram_plus_soft", "task_arithmetic", "wudi_auto"}
"""Others of their class but for a setting are tried within more than one wrapper."""
DEEP = sorted(set(INNER) - ALIKE)
NESTED = [(nesting, inner) for nesting in NESTINGS[:2] for inner in INNER]
NESTED += [(nesting, inner) for i, nesting in enumerate(NESTINGS[2:]) for inner in DEEP[i % 6 :: 6]]
"""Within one wrapper all; within more every method once, every sixth in turn."""
NESTED += [
    (nesting, inner)
    for nesting in ("svc", "svc calibrate", "calibrate svc", "svc dare", "dare svc")
    for inner in ("ram_plus_auto", "tsv_m")
]
NESTED += [
    (nesting, inner)
    for nesting in ("disentangle", "disentangle calibrate", "calibrate disentangle", "disentangle dare")
    for inner in ("ram_plus_auto", "regmean")
]
NESTED += [(nesting, "ties") for nesting in ("dare disentangle", "disentangle disentangle", "svc disentangle")]


def nested(nesting: str, inner: str) -> dict[str, Any]:
    """A method within wrappers, the outermost first."""
    method: dict[str, Any] = {"name": inner, **({"agent": "b"} if inner == "region" else {})}
    for wrapper in reversed(nesting.split()):
        setting, value = SETTINGS[wrapper]
        method = {"name": wrapper, setting: value, "then": method}
    return method


@pytest.fixture(scope="module")
def measured(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """A recipe without a method: two agents, one of which leaves a tensor as it is, and what lies beside."""
    folder = tmp_path_factory.mktemp("measured")
    base = random_base(0, {"a.proj.weight": (6, 5), "norm": (7,), "w": (31, 67)}, dict.fromkeys(["w", "norm"], "F32"))
    rng, agents = np.random.default_rng(0), {}
    for name in "ab":
        moved = {n: a + a.dtype.type(0.01) * (rng.random(a.shape) < 0.6) for n, a in base.items()}
        tensors = {n: a.astype(base[n].dtype) for n, a in moved.items()} | (
            {"norm": base["norm"]} if name == "a" else {}
        )
        importance = write_checkpoint(
            folder / f"{name}-i", {n: rng.random(a.shape).astype("f4") for n, a in base.items()}
        )
        grams = write_checkpoint(folder / f"{name}-g", {"a.proj.weight": random_gram(rng, (5, 5))})
        beside = {"importance": str(importance), "grams": str(grams)}
        agents[name] = {"source": str(write_checkpoint(folder / name, tensors)), **beside}
    return {
        "base": str(write_checkpoint(folder / "base", base)),
        "agents": agents,
        "output": {"dtype": "float32"},
        "run": {"workers": 1},
    }


@pytest.mark.parametrize(("nesting", "inner"), NESTED)
def test_any_nesting_merges_alone_from_a_survey_and_in_a_sweep(
    measured: dict[str, Any], tmp_path: Path, nesting: str, inner: str
) -> None:
    """Whether the inner method asks for a fold or not; a record is written, and read, and found the same every way."""
    recipe = {**measured, "method": nested(nesting, inner)}
    alone = merge(recipe, tmp_path / "alone")
    assert Recipe.parse(alone.recipe) == Recipe.parse(recipe)
    probe(recipe).save(tmp_path / "survey.json")
    merge({**recipe, "run": {"survey": str(tmp_path / "survey.json"), "workers": 1}}, tmp_path / "surveyed")
    setting, value = SETTINGS[nesting.split()[0]]
    found = sweep(recipe, setting, [value, 0.9], tmp_path / "sweep")
    once = found[f"{setting}={value}"]
    assert (once.learned, once.survey, once.rounding) == (alone.learned, alone.survey, alone.rounding)
    expected = read_checkpoint(tmp_path / "alone")
    assert any((array != read_checkpoint(Path(measured["base"]))[name]).any() for name, array in expected.items())
    for other in ("surveyed", f"sweep/{setting}={value}"):
        assert_same_tensors(read_checkpoint(tmp_path / other), expected, other)


WIDE = {"a.q_proj.weight": (240, 576), "norm": (31,)}
"""A row of the first does not divide a leaf, and it has more elements than fit the cache."""


@pytest.mark.parametrize(
    "method",
    [
        {"name": "disentangle", "then": "della"},
        {"name": "svc", "then": "della"},
        {"name": "calibrate", "then": "della_linear"},
        {"name": "della", "then": {"name": "wudi", "solver": "exact"}},
        {"name": "breadcrumbs", "then": {"name": "wudi", "solver": "exact"}},
    ],
    ids=str,
)
def test_rows_and_matrices_stay_whole_within_any_wrapper(
    tmp_path: Path, method: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Blocks of any size, with compiled loops and without."""
    sources = make_agents(tmp_path / "in", base=random_base(0, WIDE, dict.fromkeys(WIDE, "F32")))
    merge(sources.recipe(method), tmp_path / "large")
    merge(sources.recipe(method, run={"block_size": 4096, "workers": 1}), tmp_path / "small")
    monkeypatch.setattr(kernels, "compiling", lambda: False)
    merge(sources.recipe(method), tmp_path / "defined")
    for other in ("small", "defined"):
        assert_same_tensors(read_checkpoint(tmp_path / "large"), read_checkpoint(tmp_path / other))


def test_a_rule_may_not_bring_in_what_is_not_read(measured: dict[str, Any], tmp_path: Path) -> None:
    recipe = {
        **measured,
        "method": {"name": "dare", "then": "linear"},
        "rules": [{"tensors": "a.*", "then": "regmean"}],
    }
    with pytest.raises(RecipeError, match="reads grams, which 'dare' does not"):
        merge(recipe, tmp_path / "out")


def test_a_rule_that_changes_what_is_linear_leaves_calibrate_its_whole_matrices(tmp_path: Path) -> None:
    """The method that most tensors have is measured as if it merged every one, a matrix in many blocks too."""
    sources = make_agents(tmp_path / "in", base=random_base(0, WIDE, dict.fromkeys(WIDE, "F32")))
    rules = [{"tensors": "a.*", "linear": "none"}]
    recipe = sources.recipe({"name": "wudi_auto"}, rules=rules, run={"block_size": 4096, "workers": 1})
    merge(recipe, tmp_path / "out")
