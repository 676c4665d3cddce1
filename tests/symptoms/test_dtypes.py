"""Agents in another dtype than the base, FP8 with its scales, and everything that is packed."""

from __future__ import annotations

import itertools
import json

import numpy as np
import pytest

import agentmerge
from agentmerge.errors import SourceError
from agentmerge.tensors import DTYPES
from agentmerge.testing import read_checkpoint
from tests.symptoms.conftest import BF16, DOWN, EMBED, HEAD, MLP, NORM, Case, model, ram, same, trained

FP8 = DTYPES["F8_E4M3"]
DEEPSEEK = {"quantization_config": {"quant_method": "fp8", "weight_block_size": [128, 128]}}


def as_dtype(tensors, dtype):
    return {name: array.astype(DTYPES[dtype]) for name, array in tensors.items()}


@pytest.mark.parametrize("dtypes", [*itertools.product(["F32", "F16", "BF16"], repeat=2)])
def test_agents_of_any_float_dtype_merge_over_a_bfloat16_base(case: Case, dtypes) -> None:
    base = model()
    agents = [as_dtype(trained(base, seed), dtype) for seed, dtype in enumerate(dtypes)]
    case.put("base", base)
    for name, tensors in zip(("code", "tool"), agents, strict=True):
        case.put(name, tensors)
    case.merge()
    for name, array in case.result.items():
        assert array.dtype == BF16
        same(array, ram(base[name], *(tensors[name] for tensors in agents)))
    assert case.config["dtype"] == case.config["torch_dtype"] == "bfloat16"


def test_float32_norms_and_integer_buffers_of_a_bfloat16_model_stay_what_they_are(case: Case) -> None:
    base = {**model(), NORM: np.ones(12, np.float32), "model.layers.0.position_ids": np.arange(7)}
    agent = {**trained(base, 1), "model.layers.0.position_ids": np.arange(7) + 1}
    case.put("base", base)
    case.put("code", agent)
    case.put(
        "tool",
        {
            **as_dtype(model(), "F32"),
            NORM: base[NORM].astype(BF16),
            "model.layers.0.position_ids": base["model.layers.0.position_ids"],
        },
    )
    case.merge(inputs={"unchanged": "allow"})
    assert case.result[NORM].dtype == np.float32
    same(case.result[NORM], ram(base[NORM], agent[NORM]))
    same(case.result["model.layers.0.position_ids"], np.arange(7))
    assert case.config["dtype"] == "bfloat16"


def test_an_integer_buffer_that_an_agent_stores_as_float_is_refused(case: Case) -> None:
    case.put("base", {**model(), "steps": np.arange(7)})
    case.put("code", {**trained(model(), 1), "steps": np.arange(7, dtype=np.float32)})
    case.refused_early("steps: agent 'code' stores F32, base stores I64")


# FP8


def quantise(tensors, layout, names=(MLP,), block=(128, 128)):
    """FP8 weights and their scales, and the bfloat16 numbers that they stand for, computed one by one."""
    found, plain = dict(tensors), dict(tensors)
    for name in names:
        wide = tensors[name].astype(np.float32)
        rows, columns = wide.shape
        height, width = {"tensor": (rows, columns), "row": (1, columns)}.get(layout, block)
        shape = (-(-rows // height), -(-columns // width))
        scale = np.random.default_rng(5).uniform(0.01, 0.05, shape).astype(np.float32)
        each = np.array([[scale[r // height, c // width] for c in range(columns)] for r in range(rows)], np.float32)
        found[name] = (wide / each).astype(FP8)
        plain[name] = (found[name].astype(np.float32) * each).astype(BF16)
        suffix = "_scale_inv" if layout == "deepseek" else "_scale"
        found[name + suffix] = scale.reshape(()) if layout == "tensor" else scale
        found[name.removesuffix("weight") + "input_scale"] = np.ones((), np.float32)
    return found, plain


def large(seed=0, shape=(300, 200)):
    rng = np.random.default_rng(seed)
    return {**model(seed), MLP: rng.normal(0, 0.5, shape).astype(np.float32).astype(BF16)}


LAYOUTS = {
    "deepseek": DEEPSEEK,
    "tensor": {"quantization_config": {"quant_method": "compressed-tensors"}},
    "row": {"quantization_config": {"quant_method": "compressed-tensors"}},
    "block": {
        "quantization_config": {
            "quant_method": "compressed-tensors",
            "config_groups": {"group_0": {"weights": {"num_bits": 8, "block_structure": [64, 32]}}},
        }
    },
}


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("shape", [(300, 200), (128, 256), (1, 5), (129, 1)])
def test_an_fp8_agent_over_a_bfloat16_base_counts_as_its_dequantised_self(case: Case, layout, shape) -> None:
    """Blocks at the edges are smaller than 128. Every rounding counts here; the tests of storage are further down."""
    case.inputs = {"storage_rounding": "count"}
    block = (64, 32) if layout == "block" else (128, 128)
    base = large(shape=shape)
    stored, plain = quantise(trained(base, 1), layout, block=block)
    case.put("base", base)
    case.put("code", stored, LAYOUTS[layout])
    record = case.merge(run={"block_size": 4096})
    same(case.result[MLP], ram(base[MLP], plain[MLP]))
    assert "quantization_config" not in case.config
    assert any("1 FP8 tensors are read as bfloat16" in warning for warning in record.warnings)
    found = case.result
    case.put("code", plain)
    case.merge(run={"block_size": 1_000_000})
    for name, array in case.result.items():
        same(found[name], array)


def test_an_fp8_base_gives_a_bfloat16_output_without_scales_and_without_its_quantisation(case: Case) -> None:
    stored, plain = quantise(large(), "deepseek", (MLP, DOWN))
    code, tool = trained(plain, 1), quantise(trained(large(), 2), "deepseek", (MLP, DOWN))
    case.put("base", stored, {**DEEPSEEK, "dtype": "float8_e4m3fn"}, **{"hf_quant_config.json": b"{}"})
    case.put("code", code)
    case.put("tool", tool[0], DEEPSEEK)
    record = case.merge(inputs={"storage_rounding": "count"})
    assert list(case.result) == list(plain)
    assert {array.dtype for array in case.result.values()} == {BF16}
    for name in (MLP, DOWN, EMBED, HEAD):
        same(case.result[name], ram(plain[name], code[name], tool[1][name]))
    assert "quantization_config" not in case.config
    assert case.config["dtype"] == "bfloat16"
    assert not (case.out / "hf_quant_config.json").exists()
    assert any("the base is FP8: the output is bfloat16" in warning for warning in record.warnings)
    assert read_checkpoint(case.out)[MLP].tobytes() == case.result[MLP].tobytes()


def test_a_bfloat16_agent_of_an_fp8_base_changed_only_what_training_changed(case: Case) -> None:
    stored, plain = quantise(large(), "deepseek")
    code = {**plain, MLP: plain[MLP].copy()}
    code[MLP][7, 9] += 1
    case.put("base", stored, DEEPSEEK)
    case.put("code", code)
    assert case.merge().survey.agents["code"].changed == 1


def test_a_stack_of_fp8_experts_has_its_own_blocks_per_matrix(case: Case) -> None:
    rng = np.random.default_rng(0)
    name = "model.layers.0.mlp.experts.down_proj"
    weight = rng.normal(0, 1, (3, 130, 140)).astype(np.float32).astype(FP8)
    scale = rng.uniform(0.5, 2, (3, 2, 2)).astype(np.float32)
    each = scale.repeat(128, 1)[:, :130].repeat(128, 2)[:, :, :140]
    plain = (weight.astype(np.float32) * each).astype(BF16)
    case.put("base", {**model(), name: weight, f"{name}_scale_inv": scale}, DEEPSEEK)
    case.put("code", {**trained(model(), 1), name: plain})
    case.merge(run={"block_size": 4096})
    same(case.result[name], plain)


def test_fp8_without_a_scale_is_refused(case: Case) -> None:
    case.put("base", model())
    case.put("code", {**model(), MLP: model()[MLP].astype(FP8)})
    case.refused_early(f"{MLP} is F8_E4M3 without a scale tensor", "save it in bfloat16")


@pytest.mark.parametrize("shape", [(2,), (20, 2), (3, 1)])
def test_a_scale_of_an_unknown_shape_is_refused(case: Case, shape) -> None:
    case.put("base", model())
    code = {**model(), MLP: model()[MLP].astype(FP8), f"{MLP}_scale": np.ones(shape, np.float32)}
    case.put("code", code)
    case.refused_early(f"{MLP}_scale has shape {list(shape)}, expected one number, one per row or [1, 1]")


@pytest.mark.parametrize("size", [[128], [0, 128], "x", [1.5, 2]])
def test_a_block_size_that_is_none_is_refused(case: Case, size) -> None:
    case.put("base", model())
    stored, _ = quantise(model(), "deepseek")
    case.put("code", stored, {"quantization_config": {"quant_method": "fp8", "weight_block_size": size}})
    case.refused_early("FP8 block size", "expected [rows, columns]")


def test_a_quantisation_section_over_plain_weights_is_left_out_and_told(case: Case) -> None:
    case.put("base", model(), DEEPSEEK)
    case.put("code", trained(model(), 1))
    record = case.merge()
    assert "quantization_config" not in case.config
    assert any("plain weights and a quantization_config" in warning for warning in record.warnings)


# packed


INT = np.ones((4, 4), np.int32)
PACKED = {
    "GPTQ or AWQ": {"x.qweight": INT, "x.qzeros": INT, "x.scales": np.ones(4, np.float16)},
    "bitsandbytes": {"x.weight": INT.astype(np.uint8), "x.weight.absmax": np.ones(4, np.float32)},
    "packed compressed-tensors": {"x.weight_packed": INT, "x.weight_scale": np.ones(4, BF16)},
    "NVFP4": {
        "x.weight": INT.astype(np.uint8),
        "x.weight_scale": np.ones((4, 4), FP8),
        "x.weight_scale_2": np.ones(1, np.float32),
    },
    "MXFP4": {"x_blocks": INT.astype(np.uint8), "x_scales": INT.astype(np.uint8)},
    "quantised I8": {"x.weight": INT.astype(np.int8), "x.weight_scale": np.ones((4, 1), np.float32)},
}


@pytest.mark.parametrize("kind", PACKED)
@pytest.mark.parametrize("who", ["base", "code"])
def test_packed_weights_are_refused_by_name_with_what_to_do(case: Case, kind, who) -> None:
    for name in ("base", "code"):
        case.put(name, {**trained(model(), len(name)), **(PACKED[kind] if name == who else {})})
    message = case.refused_early(f"found {kind} weights, expected plain ones", "save it in bfloat16")
    assert f"/{who}: x" in message


@pytest.mark.parametrize("method", ["gptq", "awq", "bitsandbytes", "mxfp4", "somethingnew"])
def test_a_config_that_says_packed_is_refused(case: Case, method) -> None:
    case.put("base", model())
    case.put("code", trained(model(), 1), {"quantization_config": {"quant_method": method}})
    case.refused_early(f"quant_method '{method}'", "take quantization_config out")


def test_a_folder_of_gguf_says_what_to_merge_instead(case: Case) -> None:
    case.put("base", model())
    folder = case.folder / "code"
    folder.mkdir()
    (folder / "model-Q4_K_M.gguf").write_bytes(b"GGUF\x03")
    case.agents["code"] = str(folder)
    case.refused_early("found only model-Q4_K_M.gguf", "merge the safetensors checkpoint that they were made from")


def test_a_gguf_file_is_named_as_one(case: Case) -> None:
    case.put("base", model())
    path = case.folder / "model.gguf"
    path.write_bytes(b"GGUF\x03\x00\x00\x00\x23\x01\x00\x00" + bytes(64))
    case.agents["code"] = str(path)
    with pytest.raises(SourceError, match="a GGUF file"):
        case.merge()


def test_the_record_of_an_fp8_merge_replays(case: Case) -> None:
    stored, _ = quantise(large(), "deepseek")
    case.put("base", stored, DEEPSEEK)
    case.put("code", trained(quantise(large(), "deepseek")[1], 1))
    record = case.merge()
    agentmerge.merge(record.recipe, case.folder / "again")
    assert (case.folder / "again/model.safetensors").read_bytes() == (case.out / "model.safetensors").read_bytes()
    assert json.loads((case.folder / "again/config.json").read_bytes()) == case.config
