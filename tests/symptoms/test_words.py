"""What a message says fits what was asked: the method's own settings, the numbers as they are calculated with."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

import agentmerge
from agentmerge.errors import DataError, RecipeError
from agentmerge.testing import write_checkpoint

if TYPE_CHECKING:
    from pathlib import Path


def two(folder: Path, base: Any, agent: Any) -> dict[str, Any]:
    """A recipe of a base and one agent of one tensor."""
    write_checkpoint(folder / "base", {"w": base}, config={})
    write_checkpoint(folder / "a", {"w": agent}, config={})
    return {"base": str(folder / "base"), "agents": {"a": str(folder / "a")}}


@pytest.mark.parametrize(
    ("method", "told"),
    [
        ({"name": "task_arithmetic", "scale": 1e39}, "Lower method.scale (1e+39) or the agents' weights."),
        ({"name": "ties", "scale": 1e39}, "Lower method.scale (1e+39) or the agents' weights."),
        ({"name": "calibrate", "then": "ram", "retention": 1e300}, "Lower method.retention (1e+300)"),
        ({"name": "ram_plus", "rescale": 1e39, "scope": "tensor", "clip": 1.0}, "Lower method.rescale (1e+39)"),
        ({"name": "dare", "density": 1.0, "then": {"name": "ties", "scale": 1e39}}, "Lower method.then.scale (1e+39)"),
    ],
    ids=lambda value: value["name"] if isinstance(value, dict) else "",
)
def test_an_overflow_names_settings_that_the_method_has(tmp_path: Path, method: dict[str, Any], told: str) -> None:
    base = np.zeros(4096, np.float32)
    recipe = two(tmp_path, base, base + np.linspace(1, 2, 4096, dtype=np.float32))
    if method["name"] == "ram_plus":  # something must be shared
        write_checkpoint(tmp_path / "b", {"w": base + (np.arange(4096) % 2).astype(np.float32)}, config={})
        recipe["agents"]["b"] = str(tmp_path / "b")
    with pytest.raises(DataError) as caught:
        agentmerge.merge({**recipe, "method": method}, tmp_path / "out")
    assert told in str(caught.value)
    assert not (tmp_path / "out").exists()


def test_a_change_that_float32_does_not_hold_is_told_as_such(tmp_path: Path) -> None:
    base = np.ones(64, np.float64)
    with pytest.raises(DataError, match="is identical to the base in float32, in which everything is calculated"):
        agentmerge.merge({**two(tmp_path, base, base + 1e-12), "method": "ram"}, tmp_path / "out")


def test_an_agent_that_is_the_base_is_told_without_further_words(tmp_path: Path) -> None:
    base = np.ones(64, np.float32)
    with pytest.raises(DataError, match="is identical to the base, expected changes"):
        agentmerge.merge({**two(tmp_path, base, base), "method": "ram"}, tmp_path / "out")


@pytest.mark.parametrize(
    ("then", "told"),
    [
        (None, "recipe: method.then: expected a name or a mapping with a name, found None."),
        ({"foo": 1}, "recipe: method.then.name: expected the name of a method, found None."),
        ({"name": "ties", "foo": 1, "bar": 2}, "recipe: method.then.foo: unknown field."),
        ("tis", "recipe: method.then.name: no method 'tis'. Did you mean 'ties'?"),
        ({"name": "dare", "then": {"name": "ties", "density": 2}}, "recipe: method.then.then.density: "),
    ],
    ids=str,
)
def test_what_is_wrong_inside_a_wrapper_carries_its_path(then: Any, told: str) -> None:
    with pytest.raises(RecipeError) as caught:
        agentmerge.Recipe.parse({"base": "b", "agents": {"a": "x"}, "method": {"name": "dare", "then": then}})
    assert told in str(caught.value)
    assert all(line.startswith("recipe: method.then") for line in str(caught.value).splitlines())


@pytest.mark.parametrize("density", [2.0**-33, 1e-10, 1e-300, 5e-324])
def test_a_density_of_which_nothing_is_kept_is_refused(density: float) -> None:
    with pytest.raises(RecipeError, match=r"method\.density: a density below 2\^-32.* keeps nothing"):
        agentmerge.Recipe.parse({"base": "b", "agents": {"a": "x"}, "method": {"name": "dare", "density": density}})
    kept = {"name": "dare", "density": 2.0**-32}
    assert agentmerge.Recipe.parse({"base": "b", "agents": {"a": "x"}, "method": kept}).method.density == 2.0**-32
