"""A merged checkpoint loads where people use it. Needs torch and transformers, so it is no part of a plain pytest."""

from pathlib import Path

import pytest

import agentmerge

GOLDEN = Path(__file__).parents[1] / "golden"
pytestmark = [pytest.mark.slow, pytest.mark.filterwarnings("default")]


@pytest.mark.parametrize("dtype", ["base", "float32"])
@pytest.mark.parametrize("shard_size", ["5GB", "50KB"])
def test_a_merged_model_loads_and_its_logits_are_finite_and_not_the_bases(tmp_path, dtype, shard_size):
    torch = pytest.importorskip("torch")
    transformers = pytest.importorskip("transformers")
    recipe = {
        "base": str(GOLDEN / "base"),
        "agents": {name: str(GOLDEN / name) for name in ("code", "tool", "memory")},
        "method": "ram_plus",
        "output": {"dtype": dtype, "shard_size": shard_size},
    }
    agentmerge.merge(recipe, tmp_path / "out")
    tokens = torch.arange(24).reshape(2, 12)
    logits = {}
    for name, folder in {"base": GOLDEN / "base", "merged": tmp_path / "out"}.items():
        model, loading = transformers.AutoModelForCausalLM.from_pretrained(folder, output_loading_info=True)
        assert not any(loading[key] for key in ("missing_keys", "unexpected_keys", "mismatched_keys"))
        with torch.no_grad():
            logits[name] = model(tokens).logits.float()
    assert torch.isfinite(logits["merged"]).all()
    assert (logits["merged"] - logits["base"]).abs().max() > 1e-3


@pytest.mark.parametrize("dtype", ["base", "float32", "float16"])
def test_the_config_tells_transformers_the_true_dtype(tmp_path, dtype):
    torch = pytest.importorskip("torch")
    transformers = pytest.importorskip("transformers")
    recipe = {"base": str(GOLDEN / "base"), "agents": {"code": str(GOLDEN / "code")}, "method": "ram"}
    agentmerge.merge({**recipe, "output": {"dtype": dtype}}, tmp_path / "out")
    model = transformers.AutoModelForCausalLM.from_pretrained(tmp_path / "out", dtype="auto")
    wanted = {"base": torch.bfloat16, "float32": torch.float32, "float16": torch.float16}[dtype]
    assert next(model.parameters()).dtype == wanted
