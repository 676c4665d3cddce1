"""Every method that has an equal here, with configurations as people write them."""

import pytest
import yaml

from agentmerge.recipe import Recipe

TWO = """
models:
  - model: org/base
  - model: org/coder
    parameters: {density: 0.5, weight: 0.6}
  - model: org/tooler
    parameters: {density: 0.5, weight: 0.3}
base_model: org/base
"""


def test_task_arithmetic_keeps_weights_and_takes_the_whole_sum(convert):
    assert convert(TWO + "merge_method: task_arithmetic").data == {
        "base": "org/base",
        "agents": {
            "coder": {"source": "org/coder", "weight": 0.6},
            "tooler": {"source": "org/tooler", "weight": 0.3},
        },
        "method": {"name": "task_arithmetic", "scale": 1.0},
    }


@pytest.mark.parametrize(
    ("parameters", "scale"),
    [("{lambda: 0.7}", 0.7), ("{normalize: true}", 1 / 0.9), ("{normalize: 1.0, lambda: 0.5}", 0.5 / 0.9)],
)
def test_lambda_and_normalize_become_the_scale(convert, parameters, scale):
    data = convert(TWO + f"merge_method: task_arithmetic\nparameters: {parameters}").data
    assert data["method"]["scale"] == pytest.approx(scale, rel=1e-11)


def test_weights_and_densities_may_stand_at_the_top(convert):
    text = """
    merge_method: ties
    base_model: org/base
    models: [{model: org/a}, {model: org/b}]
    parameters: {weight: 1.0, density: 0.3, normalize: true, int8_mask: true, rescale: false, lambda: 0.8}
    dtype: float32
    """
    assert convert(text).data == {
        "base": "org/base",
        "agents": {"a": "org/a", "b": "org/b"},
        "method": {
            "name": "ties",
            "scope": "tensor",
            "zero_sign": "plus",
            "density": 0.3,
            "scale": 0.8,
            "normalize": True,
        },
        "output": {"dtype": "float32"},
    }


def test_ties_without_a_density_keeps_everything(convert):
    text = "{merge_method: ties, base_model: b, models: [{model: x, parameters: {weight: 1}}]}"
    assert convert(text).data["method"]["density"] == 1.0


def test_dare_linear_is_dare_around_task_arithmetic(convert):
    conversion = convert(TWO + "merge_method: dare_linear")
    expected = {"name": "dare", "density": 0.5, "then": {"name": "task_arithmetic", "scale": 1.0}}
    assert conversion.data["method"] == expected
    assert any("another generator" in warning for warning in conversion.warnings)


def test_dare_without_rescale_is_taken_back_by_the_scale(convert):
    method = convert(TWO + "merge_method: dare_linear\nparameters: {rescale: false, lambda: 0.8}").data["method"]
    assert method["then"]["scale"] == pytest.approx(0.4)


def test_dare_ties_is_dare_around_ties_that_trims_nothing(convert):
    method = convert(TWO + "merge_method: dare_ties\nparameters: {normalize: true, lambda: 0.5}").data["method"]
    assert method == {
        "name": "dare",
        "density": 0.5,
        "then": {"name": "ties", "density": 1.0, "zero_sign": "plus", "scale": 0.5, "normalize": True},
    }


def test_linear_with_an_ancestor_is_the_weighted_mean(convert):
    conversion = convert(TWO + "merge_method: linear")
    assert conversion.data["method"] == {"name": "linear"}
    assert any("ancestor" in warning for warning in conversion.warnings)


def test_linear_without_a_base_takes_the_first_model_for_it(convert):
    text = """
    merge_method: linear
    models:
      - {model: org/one, parameters: {weight: 1.0}}
      - {model: org/two, parameters: {weight: 0.5}}
      - {model: org/three, parameters: {weight: 0.5}}
    """
    conversion = convert(text)
    assert conversion.data == {
        "base": "org/one",
        "agents": {
            "two": {"source": "org/two", "weight": 0.5},
            "three": {"source": "org/three", "weight": 0.5},
        },
        "method": {"name": "task_arithmetic", "scale": 0.5},
    }
    assert any("org/one, the first model" in warning for warning in conversion.warnings)


def test_linear_with_plain_weights_that_add_up_to_one(convert):
    text = """
    {merge_method: linear, parameters: {normalize: false}, models: [
      {model: a, parameters: {weight: 0.7}}, {model: b, parameters: {weight: 0.3}}]}
    """
    assert convert(text).data["method"] == {"name": "task_arithmetic", "scale": 1.0}


def test_ram_takes_epsilon_as_its_threshold(convert):
    text = "{merge_method: ram, base_model: b, parameters: {epsilon: 1e-6}, models: [{model: x}, {model: y}]}"
    assert convert(text).data["method"] == {"name": "ram", "threshold": 1e-6}


def test_ramplus_tl_brings_its_own_defaults(convert):
    data = convert("{merge_method: ramplus_tl, base_model: b, models: [{model: x}, {model: y}]}").data
    expected = {"name": "ram_plus", "scope": "tensor", "threshold": 1e-5, "rescale": 0.1, "clip": 0.2}
    assert data["method"] == expected


def test_ramplus_tl_with_the_settings_of_the_paper(convert):
    text = (
        "{merge_method: ramplus_tl, base_model: b, parameters: {r: 0.2, alpha: 2.0}, models: [{model: x}, {model: y}]}"
    )
    method = convert(text).data["method"]
    assert (method["rescale"], method["clip"]) == (0.2, 2.0)


@pytest.mark.parametrize(
    "method", ["linear", "task_arithmetic", "ties", "dare_linear", "dare_ties", "ram", "ramplus_tl"]
)
def test_the_yaml_reads_back_as_the_same_recipe_with_the_warnings_above_it(convert, method):
    conversion = convert(
        TWO + f"merge_method: {method}\nparameters: {{normalize: true, int8_mask: true}}\ndtype: bfloat16"
    )
    text = conversion.yaml()
    assert yaml.safe_load(text) == conversion.data
    assert Recipe.parse(yaml.safe_load(text)) == Recipe.parse(conversion.data)
    comments = " ".join(line.lstrip("# -") for line in text.splitlines() if line.startswith("#"))
    assert conversion.warnings
    for warning in conversion.warnings:
        assert warning in comments


def test_agents_are_named_after_their_paths_and_each_has_a_name_of_its_own(convert):
    models = ["org/Coder-7B", "other/Coder-7B", "./models/base/", "-_x y@main", "C:\\m\\tool"]
    entries = ", ".join(f"{{model: '{model}'}}" for model in models)
    data = convert(f"{{merge_method: ram, base_model: b, models: [{entries}]}}").data
    assert list(data["agents"]) == ["Coder-7B", "Coder-7B-2", "base-2", "x-y", "tool"]
    assert list(data["agents"].values()) == models


def test_dare_ties_takes_the_sum_unless_told_otherwise(convert):
    assert convert(TWO + "merge_method: dare_ties").data["method"]["then"]["normalize"] is False
    assert convert(TWO + "merge_method: ties\nparameters: {normalize: false}").data["method"]["normalize"] is False


FILES = {
    "breadcrumbs": ("{gamma: 0.02}", {"density": 0.5, "gamma": 0.02, "rescale": False, "then": "added"}),
    "breadcrumbs_ties": ("{rescale: true}", {"density": 0.5, "gamma": 0.01, "rescale": True, "then": "elected"}),
    "della": ("{lambda: 0.5}", {"density": 0.5, "epsilon": 0.15, "rescale": "norm", "then": "averaged"}),
    "della_linear": ("{rescale: false}", {"density": 0.5, "epsilon": 0.15, "rescale": "none", "then": "added"}),
    "nuslerp": ("{nuslerp_flatten: false, nuslerp_row_wise: true}", {"name": "slerp", "per": "column"}),
    "multislerp": ("{normalize_weights: true}", {"eps": 1e-8}),
    "model_stock": ("{filter_wise: true}", {"filter_wise": True, "floor": 1e-6}),
    "sce": ("{select_topk: 0.3}", {"select_topk": 0.3}),
}
THEN = {
    "added": {"name": "task_arithmetic", "scale": 1.0},
    "elected": {"name": "ties", "density": 1.0, "zero_sign": "plus", "scale": 1.0, "normalize": False},
    "averaged": {"name": "ties", "density": 1.0, "zero_sign": "plus", "scale": 0.5, "normalize": True},
}


@pytest.mark.parametrize("method", FILES)
def test_methods_that_cut_draw_or_look_at_angles(convert, method):
    parameters, expected = FILES[method]
    data = convert(TWO + f"merge_method: {method}\nparameters: {parameters}").data
    then = {"then": THEN[expected["then"]]} if "then" in expected else {}
    assert data["method"] == {"name": method, **expected, **then}
    weighted = method not in ("model_stock", "sce")
    assert data["agents"]["coder"] == ({"source": "org/coder", "weight": 0.6} if weighted else "org/coder")


def test_shares_may_differ_by_model_and_tensor(convert):
    text = """
    merge_method: della_linear
    base_model: b
    models:
      - {model: x, parameters: {weight: 1, density: 0.5, epsilon: 0.1}}
      - {model: y, parameters: {weight: 1, density: 0.4, epsilon: [{filter: mlp, value: 0.3}, {value: 0.2}]}}
    """
    data = convert(text).data
    assert data["method"]["density"] == {"x": 0.5, "y": 0.4}
    assert data["method"]["epsilon"] == {"x": 0.1, "y": 0.2}
    assert data["rules"] == [{"tensors": "*mlp*", "epsilon": {"x": 0.1, "y": 0.3}}]


@pytest.mark.parametrize("method", ["slerp", "nearswap"])
def test_t_of_two_models_becomes_a_setting_and_its_filters_rules(convert, method):
    text = """
    base_model: b
    models: [{model: b}, {model: x}]
    parameters: {t: [{filter: mlp, value: 0.25}, {value: 0.5}]}
    merge_method: """
    data, setting = convert(text + method).data, "scale" if method == "slerp" else "t"
    assert data["method"] == {"name": "task_arithmetic" if method == "slerp" else method, setting: 0.5}
    assert data["rules"] == [{"tensors": "*mlp*", setting: 0.25}]
    assert data["agents"] == {"x": "x"}
