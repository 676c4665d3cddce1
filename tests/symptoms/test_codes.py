"""Integers that stand for weights, of kinds that name themselves and of kinds that do not, and integers that do not."""

from __future__ import annotations

import numpy as np
import pytest

from tests.symptoms.conftest import BF16, CONFIG, Case, model, same, trained

UP = "model.layers.0.mlp.up_proj"


def codes(*shape: int, dtype=np.uint32, seed: int = 0):
    return np.random.default_rng(seed).integers(0, 100, shape).astype(dtype)


def scales(*shape: int, seed: int = 0):
    return np.random.default_rng(seed).uniform(1, 2, shape).astype(np.float32).astype(BF16)


KINDS = {
    "MLX": lambda seed: {f"{UP}.weight": codes(12, 1, seed=seed), f"{UP}.scales": scales(12, 1),
    f"{UP}.biases": scales(12, 1)},
    "8 bit": lambda seed: {f"{UP}.weight": codes(12, 20, dtype=np.int8, seed=seed), f"{UP}.scale_weight": scales(12)},
    "EETQ": lambda seed: {f"{UP}.weight": codes(12, 20, dtype=np.int8, seed=seed), f"{UP}.weight_scales": scales(12)},
    "FP4 in bytes": lambda seed: {f"{UP}.weight": codes(12, 10, dtype=np.uint8, seed=seed)},
    "bitsandbytes 4 bit": lambda seed: {f"{UP}.weight": codes(120, 1, dtype=np.uint8, seed=seed),
                                        f"{UP}.weight.quant_state.bitsandbytes__nf4": codes(80, dtype=np.uint8)},
    "AQLM": lambda seed: {f"{UP}.codes": codes(12, 2, 1, dtype=np.int8, seed=seed), f"{UP}.codebooks": scales(1, 8,
    1, 8),
                          f"{UP}.scales": scales(12, 1, 1, 1)},
    "QuIP#": lambda seed: {f"{UP}.Qidxs": codes(12, 3, dtype=np.int64, seed=seed), f"{UP}.SU": scales(12)},
    "VPTQ": lambda seed: {f"{UP}.indices": codes(1, 12, 3, dtype=np.int32, seed=seed),
    f"{UP}.centroids.weight": scales(1, 24)},
    "HQQ": lambda seed: {f"{UP}.W_q": codes(12, 3, dtype=np.uint8, seed=seed), f"{UP}.zero": scales(12)},
    "torchao": lambda seed: {f"{UP}.weight:qdata": codes(12, 3, dtype=np.int8, seed=seed),
    f"{UP}.weight:scale": scales(12)},
    "Marlin": lambda seed: {f"{UP}.B": codes(2, 24, dtype=np.int32, seed=seed), f"{UP}.s": scales(1, 12)},
    "experts": lambda seed: {"model.layers.0.mlp.experts.down_proj": codes(2, 3, 4, dtype=np.uint8, seed=seed),
                             "model.layers.0.mlp.experts.down_proj_scales": scales(2, 3)},
    "of no known kind": lambda seed: {f"{UP}.data": codes(12, 3, dtype=np.int16, seed=seed), f"{UP}.scale": scales(12)},
}  # fmt: skip


@pytest.mark.parametrize("kind", KINDS)
def test_codes_in_all_sources_are_refused_and_never_mixed(case: Case, kind: str) -> None:
    """The output would have the base's codes, and scales that are the mean of everybody's."""
    for i, name in enumerate(("base", "code", "tool")):
        case.put(name, {**trained(model(), i), **KINDS[kind](i)})
    case.refused_early("weights, expected plain ones", "Use the unquantised checkpoint")
    assert {f.where for f in case.check().findings if f.severity == "error"} >= {"base"}


@pytest.mark.parametrize("section", [{"group_size": 64, "bits": 4}, {"w_bit": 4}, {"bits": 8, "mode": "affine"}])
@pytest.mark.parametrize("key", ["quantization", "quantization_config", "quant_config"])
@pytest.mark.parametrize("who", ["base", "code"])
def test_a_quantisation_section_of_any_name_is_refused(case: Case, section, key: str, who: str) -> None:
    for i, name in enumerate(("base", "code")):
        case.put(name, trained(model(), i), {key: section} if who == name else None)
    case.refused_early("config.json has a quantisation of", "take the section out of its config.json")


BUFFERS = {
    "model.embeddings.position_ids": np.arange(24).reshape(2, 12),
    "model.layers.0.attn.relative_position_index": np.arange(16).reshape(4, 4),
    "model.layers.0.mlp.expert_map": np.arange(6, dtype=np.int32).reshape(2, 3),
    "model.layers.0.mlp.tokens_per_expert": np.arange(6),
    "model.bn.num_batches_tracked": np.array(7),
    "model.layers.0.causal_mask": np.tri(4, dtype=np.bool_),
    "model.layers.0.byte_mask": np.tri(4, dtype=np.uint8),
}


@pytest.mark.parametrize("name", BUFFERS)
@pytest.mark.parametrize("beside", [False, True])
def test_integers_that_are_no_weights_are_copied(case: Case, name: str, beside: bool) -> None:
    """A scale in the same module makes no codes of positions, counters, maps and masks."""
    more = {name.rpartition(".")[0] + ".scale": scales(1)} if beside else {}
    case.put("base", {**model(), name: BUFFERS[name], **more})
    case.put("code", {**trained(model(), 1), name: BUFFERS[name], **more}, CONFIG)
    case.merge()
    same(case.result[name], BUFFERS[name])
