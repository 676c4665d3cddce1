"""Multipliers of the update, (merged - base) / (agent - base), as mergekit 0.1.5 gives them, tensor by tensor.

The numbers were measured with mergekit on the same configurations; `benchmarks/mergekit_configs.py` measures more.
"""

from __future__ import annotations

from textwrap import dedent
from typing import TYPE_CHECKING

import numpy as np
import pytest
import yaml

import agentmerge
from agentmerge.testing import read_checkpoint, write_checkpoint

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from agentmerge.mergekit import Conversion

LAYERS = 4
PARTS = ("self_attn.q_proj", "mlp.up_proj")
NAMES = [
    "model.embed_tokens.weight",
    *(f"model.layers.{i}.{part}.weight" for i in range(LAYERS) for part in PARTS),
    "model.norm.weight",
    "lm_head.weight",
]
FALLING = {
    "embed": 1,
    "layers.0": 1,
    "layers.1": 0.67,
    "layers.2": 0.34,
    "layers.3": 0.01,
    "model.norm": 1,
    "lm_head": 1,
}
RISING = {"embed": 0.25, "layers.0": 0.25, "layers.1": 0.5, "layers.2": 0.75, "layers.3": 1}


@pytest.fixture
def multipliers(convert: Callable[..., Conversion], tmp_path: Path) -> Callable[[str], dict[str, float]]:
    """What a configuration over `base` and `code` makes of code's change, by tensor."""
    base = {name: np.full((4, 8), 0.5, np.float32) for name in NAMES}
    for folder, step in {"base": 0.0, "code": 0.25}.items():
        tensors = {name: array + np.float32(step) for name, array in base.items()}
        write_checkpoint(tmp_path / folder, tensors, config={"num_hidden_layers": LAYERS})

    def call(text: str) -> dict[str, float]:
        text = dedent(text).replace("CODE", str(tmp_path / "code")).replace("BASE", str(tmp_path / "base"))
        agentmerge.merge(yaml.safe_load(convert(text).yaml()), tmp_path / "out")
        merged = read_checkpoint(tmp_path / "out")
        return {name: float(np.median((merged[name] - 0.5) / 0.25)) for name in NAMES}

    return call


def assert_multipliers(found: dict[str, float], expected: dict[str, float]) -> None:
    for name, multiplier in found.items():
        wanted = next((value for word, value in expected.items() if word in name), None)
        assert wanted is None or multiplier == pytest.approx(wanted, rel=1e-5), name


@pytest.mark.parametrize("method", ["dare_ties", "dare_linear", "ties", "task_arithmetic"])
def test_a_weight_that_falls_over_the_layers(multipliers: Callable[[str], dict[str, float]], method: str) -> None:
    normalize = "{normalize: false}"  # a mean of one agent would be the agent itself
    text = f"""
    merge_method: {method}
    base_model: BASE
    models: [{{model: CODE, parameters: {{weight: [1, 0.01]}}}}]
    parameters: {normalize}
    dtype: float32
    """
    assert_multipliers(multipliers(text), FALLING)


@pytest.mark.parametrize("setting", ["weight", "lambda"])
def test_dare_ties_whose_weight_or_lambda_a_filter_changes(
    multipliers: Callable[[str], dict[str, float]], setting: str
) -> None:
    values = "[{filter: mlp, value: 0.5}, {value: 0.25}]"
    parameters = f"{{{setting}: {values}}}" if setting == "weight" else f"{{weight: 1, lambda: {values}}}"
    text = f"{{merge_method: dare_ties, base_model: BASE, models: [{{model: CODE}}], parameters: {parameters}}}"
    assert_multipliers(multipliers(text), {"mlp": 0.5, "": 0.25})


def test_dare_ties_with_a_weight_of_its_own_in_each_slice(multipliers: Callable[[str], dict[str, float]]) -> None:
    text = """
    merge_method: dare_ties
    base_model: BASE
    slices:
      - sources: [{model: CODE, layer_range: [0, 2], parameters: {weight: 0.5}}]
      - sources: [{model: CODE, layer_range: [2, 4], parameters: {weight: 0.2}}]
    """
    expected = {"layers.0": 0.5, "layers.1": 0.5, "layers.2": 0.2, "layers.3": 0.2, "embed": 0.5, "": 0.2}
    assert_multipliers(multipliers(text), expected)


def test_what_stands_outside_of_the_layers_has_the_first_value(multipliers: Callable[[str], dict[str, float]]) -> None:
    text = """
    merge_method: task_arithmetic
    base_model: BASE
    models: [{model: CODE, parameters: {weight: [0.25, 1]}}]
    """
    assert_multipliers(multipliers(text), {**RISING, "": 0.25})


def test_of_several_slices_it_is_the_first_value_of_the_first_or_of_the_last(
    multipliers: Callable[[str], dict[str, float]],
) -> None:
    text = """
    merge_method: task_arithmetic
    base_model: BASE
    slices:
      - sources: [{model: CODE, layer_range: [0, 2], parameters: {weight: [0.25, 0.5]}}]
      - sources: [{model: CODE, layer_range: [2, 4], parameters: {weight: [0.6, 1.0]}}]
    """
    expected = {"embed": 0.25, "layers.0": 0.25, "layers.1": 0.5, "layers.2": 0.6, "layers.3": 1, "": 0.6}
    assert_multipliers(multipliers(text), expected)


def test_the_only_layer_of_a_slice_has_the_last_value(multipliers: Callable[[str], dict[str, float]]) -> None:
    parts = "".join(
        f"\n  - sources: [{{model: CODE, layer_range: [{i}, {i + 1}], parameters: {{weight: [0.25, 1]}}}}]"
        for i in range(LAYERS)
    )
    text = f"merge_method: task_arithmetic\nbase_model: BASE\nslices:{parts}"
    assert_multipliers(multipliers(text), {"layers": 1, "": 0.25})


def test_an_unscaled_drop_of_nothing(multipliers: Callable[[str], dict[str, float]]) -> None:
    text = """
    merge_method: dare_linear
    base_model: BASE
    models: [{model: CODE, parameters: {weight: 0.85, density: 1.0}}]
    parameters: {rescale: false}
    """
    assert_multipliers(multipliers(text), {"": 0.85})
