"""Shapes have the tensors and configs of the models that they are named after."""

from __future__ import annotations

import pytest

from agentmerge.errors import RecipeError
from agentmerge.synth.shapes import SHAPES, find_shape

PUBLISHED = {
    "qwen2.5-0.5b": 494_032_768,
    "qwen2.5-1.5b": 1_543_714_304,
    "qwen2.5-3b": 3_085_938_688,
    "qwen2.5-7b": 7_615_616_512,
    "llama-3.2-3b": 3_212_749_824,
    "qwen3-30b-a3b": 30_532_122_624,
}


def shapes_of(name):
    return {spec.name: spec.shape for spec in SHAPES[name].tensors()}


@pytest.mark.parametrize(("name", "parameters"), PUBLISHED.items())
def test_a_shape_has_the_published_number_of_parameters(name, parameters):
    assert SHAPES[name].parameters == parameters


def test_tiny_is_a_few_megabytes_and_every_other_shape_is_published():
    assert set(SHAPES) == {*PUBLISHED, "tiny"}
    assert 1_500_000 < SHAPES["tiny"].parameters < 2_500_000


@pytest.mark.parametrize("name", SHAPES)
def test_tensors_are_bf16_unique_and_sorted_by_name(name):
    specs = SHAPES[name].tensors()
    names = [spec.name for spec in specs]
    assert names == sorted(set(names))
    assert {spec.dtype for spec in specs} == {"BF16"}


@pytest.mark.parametrize("name", SHAPES)
def test_a_tied_head_is_not_stored(name):
    assert ("lm_head.weight" in shapes_of(name)) is not SHAPES[name].config["tie_word_embeddings"]


def test_qwen2_has_biases_on_queries_keys_and_values_only():
    shapes = shapes_of("qwen2.5-0.5b")
    assert shapes["model.layers.23.self_attn.q_proj.bias"] == (896,)
    assert shapes["model.layers.0.self_attn.k_proj.bias"] == (128,)
    assert shapes["model.layers.0.self_attn.v_proj.weight"] == (128, 896)
    assert "model.layers.0.self_attn.o_proj.bias" not in shapes
    assert len(shapes) == 290


def test_qwen2_7b_has_a_head_of_its_own_vocabulary():
    assert shapes_of("qwen2.5-7b")["lm_head.weight"] == (152064, 3584)
    assert len(shapes_of("qwen2.5-7b")) == 339


def test_llama_has_no_biases_and_scaled_rope():
    assert not any(name.endswith("bias") for name in shapes_of("llama-3.2-3b"))
    assert len(shapes_of("llama-3.2-3b")) == 254
    assert SHAPES["llama-3.2-3b"].config["rope_scaling"]["rope_type"] == "llama3"


def test_qwen3_moe_has_query_norms_a_gate_and_128_experts_in_each_layer():
    shapes = shapes_of("qwen3-30b-a3b")
    assert shapes["model.layers.47.self_attn.q_norm.weight"] == (128,)
    assert shapes["model.layers.0.self_attn.o_proj.weight"] == (2048, 4096)
    assert shapes["model.layers.0.mlp.gate.weight"] == (128, 2048)
    assert shapes["model.layers.0.mlp.experts.127.down_proj.weight"] == (2048, 768)
    assert "model.layers.0.self_attn.q_proj.bias" not in shapes
    assert len(shapes) == 18_867


@pytest.mark.parametrize("name", SHAPES)
def test_configs_agree_with_each_other_on_the_tokens(name):
    shape = SHAPES[name]
    assert shape.config["torch_dtype"] == "bfloat16"
    assert shape.generation["bos_token_id"] == shape.config["bos_token_id"]


def test_a_misspelt_shape_is_told_with_the_nearest_name():
    with pytest.raises(RecipeError, match=r"'qwen2\.5-05b' is not a known shape\. Did you mean 'qwen2\.5-0\.5b'\?"):
        find_shape("qwen2.5-05b")
