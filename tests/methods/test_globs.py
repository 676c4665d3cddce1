"""Globs as people write them, on the command line and in recipes, and those that fit nothing."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

from agentmerge import check, merge
from agentmerge.cli.recipes import build_recipe, parse_sweeps
from agentmerge.errors import RecipeError
from agentmerge.importance.grams import GramOptions
from agentmerge.methods.globs import globs_of
from agentmerge.methods.registry import known_methods, resolve_method
from agentmerge.testing import Sources, make_agents

if TYPE_CHECKING:
    from pathlib import Path

QUERY, DOWN, NORM = "layers.0.q_proj.weight", "layers.0.down_proj.weight", "layers.0.norm.weight"


@pytest.fixture(scope="module")
def sources(tmp_path_factory: pytest.TempPathFactory) -> Sources:
    rng = np.random.default_rng(0)
    shapes: dict[str, tuple[int, ...]] = {QUERY: (6, 8), DOWN: (8, 5), NORM: (8,)}
    base = {name: rng.normal(0, 0.5, shape).astype(np.float32) for name, shape in shapes.items()}
    return make_agents(tmp_path_factory.mktemp("globs"), base=base)


@pytest.mark.parametrize(
    ("text", "globs"),
    [
        ("a*,b*", ("a*", "b*")),
        ("a*, b*", ("a*", "b*")),
        ('["*proj.weight"]', ("*proj.weight",)),
        ('["*proj.weight", "*x"]', ("*proj.weight", "*x")),
        ("['*proj.weight','*x']", ("*proj.weight", "*x")),
        ("[*proj.weight,*x]", ("*proj.weight", "*x")),  # as a shell leaves it
        ("[]", ()),
        ("", ()),
        ("[ab]*.weight", ("[ab]*.weight",)),
        ("[ab]*.weight,*[01]", ("[ab]*.weight", "*[01]")),
        ("*.[0,2].weight,b", ("*.[0,2].weight", "b")),
    ],
)
def test_a_text_is_read_as_it_is_meant(text: str, globs: tuple[str, ...]) -> None:
    assert globs_of(text) == globs


@pytest.mark.parametrize("text", ['["a*"', '"a*"', "'a','b'", "a,,b", '["a", ""]', '["a" "b"]'])
def test_what_can_t_be_globs_is_refused(text: str) -> None:
    with pytest.raises(RecipeError, match=r"method\.linear: expected .*list"):
        resolve_method({"name": "wudi", "linear": text})


def test_every_setting_of_globs_takes_what_is_printed_of_it(sources: Sources) -> None:
    """`methods --json` and the record print lists as JSON; written on the command line they mean the same."""
    agents = [f"{name}={path}" for name, path in sources.agents.items()]
    seen = 0
    for name in known_methods():
        if name in ("esm", "esm_vit", "regmean", "fisher", "region", "slerp", "nearswap"):
            continue
        for setting, value in resolve_method(name).model_dump(mode="json").items():
            if isinstance(value, list):
                seen += 1
                for given in (value, ["*a.weight", "*[01].b"]):
                    text = f"{setting}={json.dumps(given)}"
                    recipe = build_recipe(None, {"base": str(sources.base)}, agents, name, [text])
                    assert list(getattr(recipe.method, setting)) == given
    assert seen >= 10


def test_a_list_on_the_command_line_reaches_an_inner_method_and_a_mapping_every_agent(sources: Sources) -> None:
    agents, base = [f"{name}={path}" for name, path in sources.agents.items()], {"base": str(sources.base)}
    found: Any = build_recipe(None, base, agents, "calibrate", ["then=wudi", 'then.linear=["*q_proj.weight"]']).method
    assert found.then.linear == ("*q_proj.weight",)
    densities = dict.fromkeys(sources.agents, 0.5)
    found = build_recipe(
        None, base, agents, "dare", [f"density={json.dumps(densities)}", "then={name: ties, scale: 2}"]
    )
    assert found.method.density == densities
    assert (found.method.then.name, found.method.then.scale) == ("ties", 2)


def test_a_sweep_keeps_lists_whole() -> None:
    assert parse_sweeps(['linear=["*a","*b"],*c', "rescale=0,1"]) == {
        "linear": ['["*a","*b"]', "*c"],
        "rescale": ["0", "1"],
    }


def test_the_option_of_grams_reads_the_same() -> None:
    assert GramOptions.of(linear='["*proj.weight", "*x"]').linear == "*proj.weight,*x"
    assert GramOptions.of(linear="a,b").linear == "a,b"
    with pytest.raises(RecipeError, match=r"grams: linear: expected"):
        GramOptions.of(linear='["a"')


def warnings(sources: Sources, method: Any, **more: Any) -> list[str]:
    return [found.found for found in check({**sources.recipe(method), **more}).findings if found.severity == "warning"]


@pytest.mark.parametrize("name", ["wudi", "wudi_auto", "tsv_m", "resmerge", "iso_cts", "svc", "ram"])
def test_defaults_that_fit_nothing_here_are_not_told(sources: Sources, name: str) -> None:
    assert warnings(sources, name) == []


@pytest.mark.parametrize(
    ("method", "setting", "glob"),
    [
        ({"name": "wudi", "linear": ["*proj.weight", "*prj.weight"]}, "linear", "*prj.weight"),
        ({"name": "wudi", "transposed": "*fc*"}, "transposed", "*fc*"),
        ({"name": "tsv_m", "excluded": "*embed*"}, "excluded", "*embed*"),
        ({"name": "svc", "linear": "*embed*,*proj*"}, "linear", "*embed*"),
        ({"name": "svc", "transposed": "*embed*"}, "transposed", "*embed*"),
        ({"name": "dare", "density": 0.5, "then": {"name": "wudi", "transposed": "*fc*"}}, "transposed", "*fc*"),
    ],
)
def test_a_glob_that_matches_nothing_is_told(sources: Sources, method: Any, setting: str, glob: str) -> None:
    (found,) = warnings(sources, method)
    assert f"{setting}: '{glob}' matches no tensor" in found


def test_capitals_where_names_are_in_small_letters_are_told(sources: Sources) -> None:
    (found,) = warnings(sources, {"name": "tsv_m", "excluded": "*Q_proj*"})
    assert found.endswith("matches no tensor; it is compared with names in small letters")
    assert warnings(sources, {"name": "tsv_m", "excluded": "*down_proj*"}) == []


@pytest.mark.parametrize(
    "method",
    [
        {"name": "wudi", "linear": [QUERY, DOWN, "*norm*"]},
        {"name": "wudi", "transposed": "*norm*"},
        {"name": "wudi", "linear": DOWN, "transposed": QUERY},
        {"name": "svc", "linear": DOWN, "transposed": QUERY},
    ],
)
def test_one_that_matches_only_what_is_no_layer_is_told(sources: Sources, method: Any) -> None:
    found, *share = warnings(sources, method)
    assert "matches only tensors that are not merged as matrices" in found
    assert all("of the elements of matrices" in one for one in share)


def test_a_rules_globs_are_told_too_and_those_that_a_rule_makes_fit_are_not(sources: Sources) -> None:
    rules = [{"tensors": "*q_proj*", "linear": ["*nothing*", "*proj*"]}]
    (found,) = warnings(sources, "wudi", rules=rules)
    assert "linear: '*nothing*' matches no tensor" in found
    rules = [{"tensors": "*q_proj*", "linear": [QUERY]}]
    assert warnings(sources, {"name": "wudi", "linear": DOWN, "transposed": QUERY}, rules=rules) == []


def test_the_record_has_the_warning_with_what_there_is(sources: Sources, tmp_path: Path) -> None:
    record = merge(sources.recipe({"name": "wudi", "solver": "exact", "linear": "*prj*"}), tmp_path / "out")
    nothing, share = record.warnings
    assert "The matrices are layers.*.q_proj.weight, layers.*.down_proj.weight" in nothing
    assert share.startswith("100% of the elements of matrices")
