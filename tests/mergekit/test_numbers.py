"""A converted recipe merges tiny tensors to the numbers of mergekit's formulas, worked out here."""

import numpy as np
import pytest
import yaml

import agentmerge
from agentmerge.testing import read_checkpoint, write_checkpoint

ATTENTION, MLP = "model.layers.0.self_attn.q_proj.weight", "model.layers.0.mlp.up_proj.weight"


@pytest.fixture
def merged(convert, tmp_path):
    """Merge random float32 tensors by a mergekit configuration; gives base, agents and the result."""
    rng = np.random.default_rng(0)
    folders = {}
    for name in ("base", "x", "y"):
        tensors = {tensor: rng.standard_normal((7, 9)).astype(np.float32) for tensor in (ATTENTION, MLP)}
        folders[name] = write_checkpoint(tmp_path / name, tensors)

    def call(text):
        conversion = convert(text.format(**folders))
        agentmerge.merge(yaml.safe_load(conversion.yaml()), tmp_path / "out")
        return [read_checkpoint(tmp_path / name) for name in ("base", "x", "y", "out")]

    return call


def test_task_arithmetic(merged):
    base, x, y, out = merged(
        """
        merge_method: task_arithmetic
        base_model: {base}
        parameters: {{lambda: 0.5}}
        models:
          - {{model: {x}, parameters: {{weight: [{{filter: mlp, value: 0.2}}, {{value: 0.4}}]}}}}
          - {{model: {y}, parameters: {{weight: [{{filter: mlp, value: 0.5}}, {{value: 1.0}}]}}}}
        """
    )
    for tensor, (wx, wy) in {ATTENTION: (0.4, 1.0), MLP: (0.2, 0.5)}.items():
        expected = base[tensor] + 0.5 * (wx * (x[tensor] - base[tensor]) + wy * (y[tensor] - base[tensor]))
        np.testing.assert_allclose(out[tensor], expected, rtol=1e-5, atol=1e-6)


def test_ties(merged):
    base, x, y, out = merged(
        """
        merge_method: ties
        base_model: {base}
        parameters: {{density: [{{filter: mlp, value: 0.25}}, {{value: 0.5}}], lambda: 0.8}}
        models: [{{model: {x}, parameters: {{weight: 1.0}}}}, {{model: {y}, parameters: {{weight: 0.6}}}}]
        """
    )
    for tensor, density in {ATTENTION: 0.5, MLP: 0.25}.items():
        update = np.zeros((7, 9))
        deltas = [(agent[tensor] - base[tensor]).astype(np.float64) for agent in (x, y)]
        kept = deltas[0].size - int((1 - density) * deltas[0].size) + 1
        assert kept - int(density * deltas[0].size) in (1, 2)  # mergekit keeps one or two less, as the warning says
        limits = [np.sort(np.abs(delta).ravel())[-kept] for delta in deltas]
        for i in np.ndindex(7, 9):
            left = [
                (weight, delta[i])
                for weight, delta, limit in zip((1.0, 0.6), deltas, limits, strict=True)
                if abs(delta[i]) >= limit
            ]
            sign = np.sign(sum(weight * value for weight, value in left))
            agreeing = [(weight, value) for weight, value in left if np.sign(value) == sign]
            if agreeing:
                update[i] = sum(w * v for w, v in agreeing) / sum(w for w, _ in agreeing)
        np.testing.assert_allclose(out[tensor], base[tensor] + 0.8 * update, rtol=1e-5, atol=1e-6)


def test_linear_without_a_base(merged):
    base, x, y, out = merged(
        """
        merge_method: linear
        models:
          - {{model: {base}, parameters: {{weight: 1}}}}
          - {{model: {x}, parameters: {{weight: 2}}}}
          - {{model: {y}, parameters: {{weight: 5}}}}
        """
    )
    for tensor in (ATTENTION, MLP):
        expected = (base[tensor] + 2 * x[tensor] + 5 * y[tensor]) / 8
        np.testing.assert_allclose(out[tensor], expected, rtol=1e-5, atol=1e-6)


def test_ramplus_tl(merged):
    base, x, y, out = merged(
        "{{merge_method: ramplus_tl, base_model: {base}, models: [{{model: {x}}}, {{model: {y}}}]}}"
    )
    for tensor in (ATTENTION, MLP):
        expected = base[tensor] + ((x[tensor] - base[tensor]) + (y[tensor] - base[tensor])) / 2
        np.testing.assert_allclose(out[tensor], expected, rtol=1e-5, atol=1e-6)
