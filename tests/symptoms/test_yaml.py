"""What people write in a recipe is read as what it looks like, or refused: YAML 1.1 reads some of it otherwise."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from agentmerge import Recipe
from agentmerge.errors import RecipeError
from agentmerge.files.core_yaml import parse_core_yaml


def loaded(tmp_path: Path, method: str = "ram_plus", agents: str = "{a: x}", rest: str = "") -> Recipe:
    path = tmp_path / "recipe.yaml"
    path.write_text(f"base: b\nagents: {agents}\nmethod: {method}\n{rest}\n")
    return Recipe.load(path)


@pytest.mark.parametrize(
    ("written", "told"),
    [
        ("010", "010 is 10 in YAML 1.2"),
        ("08", "08 is 8 in YAML 1.2"),
        ("-012", "-012 is -12 in YAML 1.2"),
        ("1:30", "found '1:30'"),
        ("1:30.5", "found '1:30.5'"),
        ("190:20:30", "found '190:20:30'"),
        ("0b101", "found '0b101'"),
        ("2024-01-01", "found '2024-01-01'"),
        ("yes", "found 'yes'"),
        ("on", "found 'on'"),
        ("true", "not true or false"),
        (".inf", "found inf"),
        (".nan", "found nan"),
        ("1" * 5000, "a number of 5,000 digits"),
    ],
    ids=lambda text: text[:12],
)
def test_a_number_that_yaml_1_1_reads_as_another_is_refused(tmp_path: Path, written: str, told: str) -> None:
    with pytest.raises(RecipeError) as caught:
        loaded(tmp_path, f"{{name: ram_plus, rescale: {written}}}")
    assert told in str(caught.value)
    assert "set_int_max_str_digits" not in str(caught.value)


@pytest.mark.parametrize(
    ("written", "read"),
    [("1e-5", 1e-5), ("1_000", 1000), ("0x10", 16), ("0o10", 8), (".5", 0.5), ("5.", 5), ("+1", 1), ("0.10", 0.1)],
)
def test_a_number_is_what_it_looks_like(tmp_path: Path, written: str, read: float) -> None:
    assert loaded(tmp_path, f"{{name: ram_plus, rescale: {written}}}").method.rescale == read


def test_on_off_yes_and_no_are_names_and_paths(tmp_path: Path) -> None:
    recipe = loaded(tmp_path, agents="{on: off, yes: no, n: y}")
    assert {name: agent.source for name, agent in recipe.agents.items()} == {"on": "off", "yes": "no", "n": "y"}


def test_yes_is_a_truth_value_where_one_is_meant(tmp_path: Path) -> None:
    assert loaded(tmp_path, rest="inputs: {untie: yes}").inputs.untie


@pytest.mark.parametrize(
    "name", [True, 1, 1.5, 2**70, 10**5000], ids=lambda name: str(name)[:9] if name < 10**99 else ""
)
def test_an_agents_name_that_is_no_text_gets_the_hint_about_quotes(name: Any) -> None:
    with pytest.raises(RecipeError, match=r"agents\..*Put quotes around it where text is meant"):
        Recipe.parse({"base": "b", "agents": {name: "x"}, "method": "ram"})


def test_a_path_that_looks_like_a_number_gets_the_hint_about_quotes(tmp_path: Path) -> None:
    with pytest.raises(RecipeError, match=r"agents\.a\.source: .*found 7\. Put quotes around it"):
        loaded(tmp_path, agents="{a: {source: 7}}")


@pytest.mark.parametrize("field", ["seed", "rescale", "weight", "workers", "shard_size"])
@pytest.mark.parametrize("value", [10**5000, "1" * 5000, -(10**5000)], ids=["int", "text", "negative"])
def test_thousands_of_digits_are_told_calmly(field: str, value: Any) -> None:
    data: dict[str, Any] = {"base": "b", "agents": {"a": "x"}, "method": "ram_plus"}
    more: dict[str, Any] = {
        "seed": {"seed": value},
        "rescale": {"method": {"name": "ram_plus", "rescale": value}},
        "weight": {"agents": {"a": {"source": "x", "weight": value}}},
        "workers": {"run": {"workers": value}},
        "shard_size": {"output": {"shard_size": value}},
    }
    with pytest.raises(RecipeError) as caught:
        Recipe.parse({**data, **more[field]})
    assert field in str(caught.value)
    assert "set_int_max_str_digits" not in str(caught.value)
    assert len(str(caught.value)) < 300


@given(
    st.recursive(
        st.none()
        | st.booleans()
        | st.integers(-(10**20), 10**20)
        | st.floats(allow_nan=False)
        | st.text("ab:- #\n'\"", max_size=8),
        lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text("abc", min_size=1), inner, max_size=3),
        max_leaves=8,
    )
)
def test_what_pyyaml_writes_is_read_back(data: Any) -> None:
    assert parse_core_yaml(yaml.safe_dump(data)) == data


def test_the_parser_of_libyaml_and_the_one_of_python_read_the_same() -> None:
    from agentmerge.files import core_yaml

    text = Path(__file__).parents[2].joinpath("docs/recipe.md").read_text(encoding="utf-8").split("```yaml\n")[1]
    text = text.split("```")[0]
    assert yaml.load(text, core_yaml._Fast) == yaml.load(text, core_yaml._Exact)
