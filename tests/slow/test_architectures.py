"""Merged models of seven architectures load in transformers and compute what a float64 merge computes.

Needs torch and transformers, so it is no part of a plain pytest. The rules that vLLM and SGLang add are asserted on the
files.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from safetensors import safe_open

import agentmerge
from agentmerge.testing import read_checkpoint

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = [pytest.mark.slow, pytest.mark.filterwarnings("default")]
SIZES = {
    "vocab_size": 96,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 64,
    "bos_token_id": 1,
    "eos_token_id": 2,
    "pad_token_id": 0,
}
VISION = {
    "depth": 2,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_heads": 4,
    "out_hidden_size": 32,
    "fullatt_block_indexes": [1],
}
MOE = {"num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 24, "decoder_sparse_step": 1}
MROPE = {"type": "mrope", "mrope_section": [1, 1, 2]}
MODELS: dict[str, tuple[str, str, dict[str, Any]]] = {
    "llama": ("LlamaForCausalLM", "LlamaConfig", SIZES),
    "qwen2": ("Qwen2ForCausalLM", "Qwen2Config", {**SIZES, "tie_word_embeddings": True}),
    "qwen3": ("Qwen3ForCausalLM", "Qwen3Config", {**SIZES, "head_dim": 8}),
    "qwen3_moe": ("Qwen3MoeForCausalLM", "Qwen3MoeConfig", {**SIZES, **MOE, "head_dim": 8}),
    "gemma3": ("Gemma3ForCausalLM", "Gemma3TextConfig", {**SIZES, "head_dim": 8}),
    "mistral": ("MistralForCausalLM", "MistralConfig", {**SIZES, "head_dim": 8}),
    "qwen2_5_vl": (
        "Qwen2_5_VLForConditionalGeneration",
        "Qwen2_5_VLConfig",
        {"text_config": {**SIZES, "rope_scaling": MROPE}, "vision_config": VISION},
    ),
}
METHODS = {
    "ram_plus": {"name": "ram_plus", "rescale": 0.5},
    "task_arithmetic": {"name": "task_arithmetic", "scale": 0.7},
}
DENSITY = 0.2
TIED = {"qwen2", "gemma3"}


@pytest.fixture(scope="module")
def sources(tmp_path_factory: pytest.TempPathFactory) -> dict[str, dict[str, Any]]:
    """Per model a recipe's base and agents: random weights, each agent with a fifth of them moved by some steps."""
    torch, transformers = pytest.importorskip("torch"), pytest.importorskip("transformers")
    transformers.logging.set_verbosity_error()
    root, found = tmp_path_factory.mktemp("models"), {}
    for name, (model_class, config_class, sizes) in MODELS.items():
        torch.manual_seed(0)
        config = getattr(transformers, config_class)(**sizes)
        model = getattr(transformers, model_class)(config).to(torch.bfloat16)
        model.save_pretrained(root / name / "base")
        agents = {}
        for seed, agent in enumerate(("code", "tool")):
            copy = getattr(transformers, model_class).from_pretrained(root / name / "base", dtype=torch.bfloat16)
            generator = torch.Generator().manual_seed(seed)
            with torch.no_grad():
                for parameter in copy.parameters():
                    chosen = torch.rand(parameter.shape, generator=generator) < DENSITY
                    parameter += torch.where(chosen, 0.0625, 0.0).to(parameter.dtype)
            copy.save_pretrained(root / name / agent)
            agents[agent] = str(root / name / agent)
        found[name] = {"base": str(root / name / "base"), "agents": agents}
    return found


def tensors_of(folder: Path | str) -> dict[str, np.ndarray]:
    from pathlib import Path

    return {name: array.astype(np.float64) for name, array in read_checkpoint(Path(folder)).items()}


def merged_by_definition(source: dict[str, Any], method: str) -> dict[str, np.ndarray]:
    """RAM+ and task arithmetic in float64, as the papers write them."""
    base = tensors_of(source["base"])
    agents = [tensors_of(path) for _, path in sorted(source["agents"].items())]
    tau = {name: np.stack([agent[name] - array for agent in agents]) for name, array in base.items()}
    if method == "task_arithmetic":
        return {name: array + METHODS[method]["scale"] * tau[name].sum(axis=0) for name, array in base.items()}
    changed = {name: np.abs(found) > 1e-5 for name, found in tau.items()}
    count = {name: found.sum(axis=0) for name, found in changed.items()}
    merged = {}
    shared = sum((found & (count[name] >= 2)).reshape(2, -1).sum(axis=1) for name, found in changed.items())
    unique = sum((found & (count[name] == 1)).reshape(2, -1).sum(axis=1) for name, found in changed.items())
    scale = 1 + METHODS[method]["rescale"] * np.clip(shared / unique, 0, 2.0)
    for name, array in base.items():
        moved = np.where(changed[name], tau[name], 0)
        alone = np.tensordot(scale, np.where(count[name] == 1, moved, 0), axes=1)
        together = np.where(count[name] >= 2, moved, 0).sum(axis=0) / np.maximum(count[name], 1)
        merged[name] = array + alone + together
    return merged


def load(model: str, folder: Path | str, **options: Any) -> Any:
    import transformers

    found, loading = getattr(transformers, MODELS[model][0]).from_pretrained(
        folder, output_loading_info=True, **options
    )
    for key in ("missing_keys", "unexpected_keys", "mismatched_keys", "error_msgs"):
        assert not loading.get(key), (key, loading[key])
    return found.eval()


def logits(model: Any) -> Any:
    import torch

    with torch.no_grad():
        return model(torch.arange(24).reshape(2, 12) % 90 + 3).logits.double()


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("model", MODELS)
def test_a_merged_model_loads_and_computes_what_a_float64_merge_computes(sources, tmp_path, model, method) -> None:
    torch = pytest.importorskip("torch")
    recipe = {**sources[model], "method": METHODS[method], "output": {"dtype": "float32"}}
    agentmerge.merge(recipe, tmp_path / "out")
    wanted = merged_by_definition(sources[model], method)
    found = tensors_of(tmp_path / "out")
    assert list(found) == list(wanted)
    for name, array in found.items():
        np.testing.assert_allclose(array, wanted[name], rtol=1e-6, atol=1e-7, err_msg=name)
    merged = load(model, tmp_path / "out", dtype=torch.float32)
    exact = exactly(model, sources[model]["base"], wanted)
    base = logits(load(model, sources[model]["base"], dtype=torch.float32))
    difference = (logits(merged) - logits(exact)).abs().max()
    assert difference < 1e-4
    assert (logits(merged) - base).abs().max() > 100 * difference


def exactly(model: str, base: str, wanted: dict[str, np.ndarray]) -> Any:
    """A model that holds the float64 merge, in float64 where torch can, put in by transformers' own loading."""
    import shutil
    import tempfile
    from pathlib import Path

    import torch
    from safetensors.torch import save_file

    with tempfile.TemporaryDirectory() as name:
        folder = Path(shutil.copytree(base, Path(name) / "exact"))
        tensors = {key: torch.from_numpy(np.ascontiguousarray(array)) for key, array in wanted.items()}
        save_file(tensors, folder / "model.safetensors", {"format": "pt"})
        dtype = torch.float32 if model == "qwen3_moe" else torch.float64  # torch multiplies no experts in float64
        return load(model, folder, dtype=dtype)


@pytest.mark.parametrize("shard_size", ["5GB", "20KB"])
@pytest.mark.parametrize("model", MODELS)
def test_a_merged_model_keeps_the_rules_of_vllm_and_sglang(sources, tmp_path, model, shard_size) -> None:
    torch = pytest.importorskip("torch")
    out = tmp_path / "out"
    agentmerge.merge({**sources[model], "method": "ram_plus", "output": {"shard_size": shard_size}}, out)
    config = json.loads((out / "config.json").read_bytes())
    assert config["dtype"] == config["torch_dtype"] == "bfloat16"
    assert all(
        section.get("dtype", "bfloat16") == "bfloat16" for section in config.values() if isinstance(section, dict)
    )
    assert "quantization_config" not in config
    weights = {path.name for path in out.iterdir() if path.suffix in {".safetensors", ".bin", ".pt", ".gguf"}}
    index = out / "model.safetensors.index.json"
    if index.exists():
        weight_map = json.loads(index.read_bytes())["weight_map"]
        assert set(weight_map.values()) == weights
        assert weights == {f"model-{i + 1:05d}-of-{len(weights):05d}.safetensors" for i in range(len(weights))}
    else:
        assert weights == {"model.safetensors"}
    stored: dict[str, str] = {}
    for name in weights:
        with safe_open(out / name, "pt") as file:
            assert file.metadata()["format"] == "pt"
            stored |= dict.fromkeys(file.keys(), name)
    assert not index.exists() or stored == weight_map
    tied = config.get("tie_word_embeddings", config.get("text_config", {}).get("tie_word_embeddings"))
    assert bool(tied) == (model in TIED) == ("lm_head.weight" not in stored)
    loaded = load(model, out, dtype="auto")
    assert {parameter.dtype for parameter in loaded.parameters()} == {torch.bfloat16}
    same = loaded.get_output_embeddings().weight is loaded.get_input_embeddings().weight
    assert same == (model in TIED)
    assert not [path.name for path in out.iterdir() if path.name.startswith(".")]


@pytest.mark.parametrize("model", sorted(TIED))
def test_an_untied_model_loads_with_a_head_of_its_own(sources, tmp_path, model) -> None:
    torch = pytest.importorskip("torch")
    agentmerge.merge({**sources[model], "method": "ram", "inputs": {"untie": True}}, tmp_path / "untied")
    agentmerge.merge({**sources[model], "method": "ram"}, tmp_path / "tied")
    untied, tied = (load(model, tmp_path / name, dtype=torch.float32) for name in ("untied", "tied"))
    assert untied.get_output_embeddings().weight is not untied.get_input_embeddings().weight
    assert torch.equal(logits(untied), logits(tied))


@pytest.mark.parametrize("model", MODELS)
def test_check_finds_nothing_wrong_with_what_transformers_saves(sources, model) -> None:
    assert agentmerge.check({**sources[model], "method": "ram"}).findings == []
