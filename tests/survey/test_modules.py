"""Tensor names find their layer and kind."""

import pytest

from agentmerge.survey.modules import KINDS, ORDER, Module, in_order, module_of
from agentmerge.synth.shapes import SHAPES, find_shape


@pytest.mark.parametrize(
    ("name", "layer", "kind"),
    [
        ("model.embed_tokens.weight", -1, "embeddings"),
        ("lm_head.weight", -1, "head"),
        ("model.norm.weight", -1, "norm"),
        ("model.layers.7.input_layernorm.weight", 7, "norm"),
        ("model.layers.7.self_attn.q_norm.weight", 7, "norm"),
        ("model.layers.12.self_attn.q_proj.bias", 12, "attention q"),
        ("model.layers.12.self_attn.k_proj.weight", 12, "attention k"),
        ("model.layers.12.self_attn.v_proj.weight", 12, "attention v"),
        ("model.layers.12.self_attn.o_proj.weight", 12, "attention o"),
        ("model.layers.0.self_attn.qkv_proj.weight", 0, "attention qkv"),
        ("model.layers.0.mlp.gate_proj.weight", 0, "mlp gate"),
        ("model.layers.0.mlp.gate_up_proj.weight", 0, "mlp gate+up"),
        ("model.layers.0.mlp.up_proj.weight", 0, "mlp up"),
        ("model.layers.0.mlp.down_proj.weight", 0, "mlp down"),
        ("model.layers.3.mlp.gate.weight", 3, "router"),
        ("model.layers.3.mlp.experts.17.down_proj.weight", 3, "experts"),
        ("model.layers.3.block_sparse_moe.experts.1.w2.weight", 3, "experts"),
        ("model.layers.3.mlp.shared_expert.up_proj.weight", 3, "shared expert"),
        ("transformer.h.5.attn.c_attn.weight", 5, "attention qkv"),
        ("transformer.h.5.mlp.c_proj.weight", 5, "mlp down"),
        ("transformer.wte.weight", -1, "embeddings"),
        ("vision.patch.weight", -1, "other"),
    ],
)
def test_names_of_common_families(name: str, layer: int, kind: str) -> None:
    assert module_of(name) == Module(layer, kind)


@pytest.mark.parametrize("shape", sorted(SHAPES))
def test_every_tensor_of_a_known_shape_has_a_kind(shape: str) -> None:
    assert all(module_of(spec.name).kind != "other" for spec in find_shape(shape).tensors())


def test_every_kind_has_its_place_in_the_order() -> None:
    assert {kind for kind, _ in KINDS} <= set(ORDER)
    assert in_order([Module(1, "norm"), Module(0, "mlp up"), Module(0, "attention q")])[0] == Module(0, "attention q")
