"""Filters, gradients and slices become rules that say the same of every tensor."""

import numpy as np
import pytest
import yaml
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from agentmerge.engine.rules import Rules
from agentmerge.errors import RecipeError
from agentmerge.recipe import Recipe

LAYERS = 4
NAMES = [
    *(f"model.layers.{i}.{part}.weight" for i in range(LAYERS) for part in ("self_attn.q_proj", "mlp.up_proj", "norm")),
    "model.embed_tokens.weight",
    "model.norm.weight",
    "lm_head.weight",
]


def told(conversion):
    """What our engine decides for every name: the density and scale it uses and who is skipped; None for the base."""
    recipe = Recipe.parse(conversion.data)
    rules, found = Rules(recipe), {}
    for name in NAMES:
        decision = rules.decide(name)
        method = decision.method.model_dump()
        scale = method["scale"] if "scale" in method else method["then"]["scale"]
        found[name] = None if decision.take == "base" else (method.get("density"), scale, set(decision.skip))
    return found


def part(name, word):
    return word in name


def test_a_density_that_a_filter_changes(convert):
    text = """
    merge_method: ties
    base_model: b
    models: [{model: x}, {model: y}]
    parameters:
      weight: 1
      density:
        - {filter: self_attn, value: 0.3}
        - {filter: layers.0., value: 0.5}
        - {value: 0.9}
    """
    conversion = convert(text)
    for name, (density, _, skip) in told(conversion).items():
        expected = 0.3 if part(name, "self_attn") else 0.5 if part(name, "layers.0.") else 0.9
        assert (density, skip) == (expected, set()), name


def test_the_first_filter_that_fits_wins_and_an_unmatched_level_asks_the_next(convert):
    text = """
    merge_method: task_arithmetic
    base_model: b
    models:
      - {model: x, parameters: {weight: [{filter: mlp, value: 0.5}, {filter: up_proj, value: 9}]}}
      - {model: y, parameters: {weight: [{filter: mlp, value: 1.0}]}}
    parameters: {weight: [{filter: "*", value: 0.2}]}
    """
    with pytest.raises(RecipeError, match=r"0\.5 : 1 for tensors whose name holds 'mlp'|0\.2 : 0\.2"):
        convert(text)
    same = text.replace("value: 1.0", "value: 0.5")
    for name, (_, scale, skip) in told(convert(same)).items():
        assert (scale, skip) == (pytest.approx(2.5 if part(name, "mlp") else 1), set()), name


def test_weight_zero_skips_the_agent(convert):
    text = """
    merge_method: task_arithmetic
    base_model: b
    models:
      - {model: x, parameters: {weight: [{filter: self_attn, value: 0}, {value: 0.4}]}}
      - {model: y, parameters: {weight: 0.4}}
    """
    for name, (_, scale, skip) in told(convert(text)).items():
        assert (scale, skip) == (1.0, {"x"} if part(name, "self_attn") else set()), name


def test_a_mean_over_the_agents_that_are_left(convert):
    text = """
    merge_method: linear
    base_model: b
    models:
      - {model: x, parameters: {weight: [{filter: self_attn, value: 0}, {value: 3}]}}
      - {model: y, parameters: {weight: 1}}
    """
    conversion = convert(text)
    assert conversion.data["method"] == {"name": "task_arithmetic", "scale": 0.25}
    for name, (_, scale, skip) in told(conversion).items():
        assert (scale, skip) == ((1.0, {"x"}) if part(name, "self_attn") else (0.25, set())), name


def test_weight_zero_for_all_takes_the_base(convert):
    text = """
    merge_method: dare_linear
    base_model: b
    models: [{model: x}, {model: y}]
    parameters: {density: 0.5, weight: [{filter: mlp, value: 0.4}, {value: 0}]}
    """
    conversion = convert(text)
    assert conversion.data["rules"][0] == {"tensors": "*", "take": "base"}
    for name, found in told(conversion).items():
        assert found == ((0.5, 1.0, set()) if part(name, "mlp") else None), name


def test_a_gradient_runs_over_the_layers_and_what_stands_outside_has_its_first_value(convert):
    text = """
    merge_method: ties
    base_model: b
    models: [{model: x}, {model: y}]
    parameters: {weight: 1, density: [0.2, 0.8, 0.5]}
    """
    densities = {0: 0.2, 1: 0.6, 2: 0.7, 3: 0.5}
    for name, (density, _, _) in told(convert(text, layers=LAYERS)).items():
        layer = next((i for i in densities if part(name, f"layers.{i}.")), 0)
        assert density == pytest.approx(densities[layer]), name


def test_a_gradient_under_a_filter(convert):
    text = """
    merge_method: ties
    base_model: b
    models: [{model: x}, {model: y}]
    parameters: {weight: 1, lambda: 2, density: [{filter: mlp, value: [0.1, 0.7]}, {value: 0.9}]}
    """
    conversion = convert(text, layers=LAYERS)
    for name, (density, scale, _) in told(conversion).items():
        layer = int(name.split(".")[2]) if part(name, "mlp") else None
        assert (density, scale) == (pytest.approx(0.9 if layer is None else 0.1 + 0.2 * layer), 2), name


def test_the_number_of_layers_comes_from_a_local_base(convert, tmp_path):
    (tmp_path / "config.json").write_text('{"num_hidden_layers": 2}')
    text = f"""
    merge_method: ties
    base_model: {tmp_path}
    models: [{{model: x}}]
    parameters: {{weight: 1, density: [0.25, 1.0]}}
    """
    globs = {rule["tensors"]: rule["density"] for rule in convert(text).data["rules"]}
    assert globs == {"*layers.1.*": 1.0}


def test_one_slice_of_all_layers_is_the_same_as_whole_models(convert):
    text = """
    merge_method: ties
    base_model: b
    slices:
      - sources:
          - {model: b, layer_range: [0, 4]}
          - {model: x, layer_range: [0, 4], parameters: {weight: 1, density: 0.5}}
          - {model: y, layer_range: [0, 4], parameters: {weight: 1, density: 0.5}}
    parameters: {normalize: true}
    """
    conversion = convert(text)
    assert conversion.data["method"]["density"] == 0.5
    assert "rules" not in conversion.data
    assert any("layer 4: taken for all" in warning for warning in conversion.warnings)


def test_slices_that_follow_each_other_become_rules_per_layer(convert):
    piece = """
      - sources:
          - {{model: x, layer_range: [{0}, {1}], parameters: {{density: {2}, weight: {3}}}}}
          - {{model: y, layer_range: [{0}, {1}], parameters: {{density: {2}, weight: {4}}}}}
    """
    text = "merge_method: dare_linear\nbase_model: b\nslices:"
    conversion = convert(text + piece.format(0, 2, 0.4, 0.2, 0.4) + piece.format(2, 4, 0.6, 0.1, 0.2))
    for name, (density, scale, skip) in told(conversion).items():
        first = any(part(name, word) for word in ("layers.0.", "layers.1.", "embed"))
        assert (density, scale, skip) == ((0.4, 2.0, set()) if first else (0.6, 1.0, set())), name


def test_an_agent_that_is_in_some_slices_only_is_skipped_in_the_others(convert):
    text = """
    merge_method: task_arithmetic
    base_model: b
    parameters: {weight: 0.5}
    slices:
      - sources: [{model: x, layer_range: [0, 2]}]
      - sources: [{model: x, layer_range: [2, 4]}, {model: y, layer_range: [2, 4]}]
    """
    for name, (_, scale, skip) in told(convert(text)).items():
        first = any(part(name, word) for word in ("layers.0.", "layers.1.", "embed"))
        assert (scale, skip) == (1.0, {"y"} if first else set()), name


def test_layers_that_are_alike_share_one_rule(convert):
    text = """
    merge_method: ties
    base_model: b
    models: [{model: x}, {model: y, parameters: {weight: [{filter: mlp, value: 0}]}}]
    parameters: {weight: 1, density: [0.2, 0.8]}
    """
    conversion = convert(text, layers=30)
    assert {"tensors": "*layers.*mlp*", "skip": ["y"]} in conversion.data["rules"]
    assert len(conversion.data["rules"]) == 29 + 1
    for name, (_, _, skip) in told(conversion).items():
        assert skip == ({"y"} if part(name, "mlp") else set())


def test_special_characters_of_globs_mean_themselves(convert):
    text = """
    merge_method: ties
    base_model: b
    models: [{model: x}]
    parameters: {weight: 1, density: [{filter: "a[0]?", value: 0.3}, {value: 0.9}]}
    """
    recipe = Recipe.parse(convert(text).data)
    decide = Rules(recipe).decide
    assert decide("x.a[0]?.weight").method.density == 0.3
    assert decide("x.a0z.weight").method.density == 0.9


def test_a_filter_within_another_one_wins_where_it_comes_first(convert):
    text = """
    merge_method: ties
    base_model: b
    models: [{model: x}]
    parameters:
      weight: 1
      density:
        - {filter: q_proj, value: 0.1}
        - {filter: self_attn.q, value: 0.2}
        - {filter: _proj, value: 0.3}
        - {value: 0.4}
    """
    for name, (density, _, _) in told(convert(text)).items():
        expected = 0.1 if part(name, "q_proj") else 0.3 if part(name, "_proj") else 0.4
        assert density == expected, name


FILTERS = st.sampled_from(["self_attn", "mlp", "q_proj", "layers.1.", "norm", "embed", "lm_head", "weight", "odd", "*"])
SETTING = st.lists(st.tuples(FILTERS, st.sampled_from([0.0, 0.25, 0.5, 1.0, [0.5, 1.0]])), max_size=3)


def meant(setting, name):
    """What mergekit takes for a tensor: the first filter that fits, interpolated over four layers; else 1."""
    layer = int(name.split(".")[2]) if "layers" in name else 0
    for word, value in setting:
        if word == "*" or word in name:
            low, high = value if isinstance(value, list) else (value, value)
            return low + (high - low) * layer / (LAYERS - 1)
    return 1.0


@settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(x=SETTING, y=SETTING, density=SETTING, lam=SETTING)
def test_a_conversion_is_exact_for_every_tensor_or_refused(convert, x, y, density, lam):
    def written(setting):
        return [*({"filter": word, "value": value} for word, value in setting), {"value": 1.0}]

    config = {
        "merge_method": "dare_linear",
        "base_model": "b",
        "models": [
            {"model": "x", "parameters": {"weight": written(x)}},
            {"model": "y", "parameters": {"weight": written(y)}},
        ],
        "parameters": {"density": written(density), "lambda": written(lam)},
    }
    try:
        conversion = convert(yaml.safe_dump(config), layers=LAYERS)
    except RecipeError:
        return
    weights = {n: a if isinstance(a, dict) else {"weight": 1.0} for n, a in conversion.data["agents"].items()}
    for name, found in told(conversion).items():
        kept, scale, skip = found or (None, 0.0, set())
        for agent, setting in {"x": x, "y": y}.items():
            factor = 0.0 if agent in skip else scale * weights[agent]["weight"]
            assert factor == pytest.approx(meant(lam, name) * meant(setting, name)), (name, agent)
        assert kept is None or kept == pytest.approx(meant(density, name)), name


@settings(max_examples=100, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    method=st.sampled_from(["ties", "dare_ties", "dare_linear"]),
    x=SETTING,
    y=SETTING,
    weight=SETTING,
    lam=SETTING,
    normalize=st.sampled_from([None, False, True]),
)
def test_what_a_rule_changes_of_an_inner_method_leaves_the_rest_of_it(convert, method, x, y, weight, lam, normalize):
    """Densities of each agent, a weight of both, and whatever else the inner method was given."""

    def written(setting, floor=0.0):
        entries = [{"filter": word, "value": np.maximum(value, floor).tolist()} for word, value in setting]
        return [*entries, {"value": 1.0}]

    config = {
        "merge_method": method,
        "base_model": "b",
        "models": [
            {"model": "x", "parameters": {"density": written(x, 0.125)}},
            {"model": "y", "parameters": {"density": written(y, 0.125)}},
        ],
        "parameters": {"weight": written(weight, 0.25), "lambda": written(lam)},
    }
    if normalize is not None:
        config["parameters"]["normalize"] = normalize
    conversion = convert(yaml.safe_dump(config), layers=LAYERS)
    recipe = Recipe.parse(conversion.data)
    rules, adds = Rules(recipe), not (method == "ties" if normalize is None else normalize)
    agent_weight = recipe.agents["x"].weight
    for name in NAMES:
        found = rules.decide(name).method.model_dump()
        inner = found if method == "ties" else found["then"]
        density = found["density"] if isinstance(found["density"], dict) else dict.fromkeys("xy", found["density"])
        for agent, setting in {"x": x, "y": y}.items():
            floor = [(word, np.maximum(value, 0.125).tolist()) for word, value in setting]
            assert density[agent] == pytest.approx(meant(floor, name)), (name, agent)
        w = meant([(word, np.maximum(value, 0.25).tolist()) for word, value in weight], name)
        if method == "dare_linear":
            expected = meant(lam, name) * (w if adds else 1 / 2)
            assert inner["scale"] * agent_weight == pytest.approx(expected), name
        else:
            assert inner["normalize"] is not adds, name
            assert inner["zero_sign"] == "plus"
            assert inner["scale"] * (agent_weight if adds else 1) == pytest.approx(
                meant(lam, name) * (w if adds else 1)
            )
