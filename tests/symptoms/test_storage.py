"""Agents whose numbers differ from the base's by how they are stored: that is no training."""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np
import pytest

import agentmerge
from agentmerge import kernels
from agentmerge.tensors import DTYPES
from tests.symptoms.conftest import BF16, EMBED, HEAD, MLP, NORM, Case, model, same

FLOATS = ("F64", "F32", "F16", "BF16")
COARSER = [(b, a) for b, a in itertools.product(FLOATS, repeat=2) if FLOATS.index(a) > FLOATS.index(b)] + [
    ("BF16", "F16")
]
"""(base, agent) pairs in which the agent does not hold every number of the base."""
ROUTER, INVERSE = "model.layers.0.mlp.router.e_score_correction_bias", "model.rotary_emb.inv_freq"


def numbers(dtype: str = "F32", seed: int = 0, spread: float = 0.5) -> dict[str, np.ndarray]:
    """A model whose numbers use every bit of a dtype, over more of its range than training does."""
    rng = np.random.default_rng(seed)
    wide = {name: rng.normal(0, spread, array.shape) for name, array in model().items()}
    wide[MLP] *= np.exp(rng.normal(0, 4, wide[MLP].shape))
    return {name: array.astype(DTYPES[dtype]) for name, array in wide.items()}


def stored(tensors, dtype):
    """As torch casts: to nearest, float64 by way of float32."""
    with np.errstate(over="ignore"):
        return {name: array.astype(np.float32).astype(DTYPES[dtype]) for name, array in tensors.items()}


def trained(tensors, seed, dtype, density=0.2):
    """Some elements moved by an eighth, then everything stored in a dtype; and which elements moved."""
    rng = np.random.default_rng(seed)
    moved = {name: rng.random(array.shape) < density for name, array in tensors.items()}
    wide = {n: a.astype(np.float32) + np.where(moved[n], np.float32(0.125), np.float32(0)) for n, a in tensors.items()}
    return stored(wide, dtype), moved


def ram(base, *agents):
    """RAM by its definition in float32, a unique element to the bit, in the base's dtype."""
    ours = base.astype(np.float32)
    values = np.stack([agent.astype(np.float32) for agent in agents])
    changed = np.abs(values - ours) > 1e-5
    number = changed.sum(axis=0)
    total = np.zeros_like(ours)
    for value, by in zip(values, changed, strict=True):
        total = total + np.where(by, value - ours, np.float32(0))
    mean = ours + total / np.maximum(number, 1).astype(np.float32)
    own = np.where(changed, values, 0).sum(axis=0, dtype=np.float32)
    merged = np.where(number == 0, ours, np.where(number == 1, own, mean))
    return np.where(number == 0, base, merged.astype(base.dtype))


def alone(base, agent, moved):
    """The agent with the base's own numbers wherever training moved nothing."""
    found = {}
    for name, array in base.items():
        as_stored = array.astype(np.float32).astype(agent[name].dtype)
        kept = moved[name] & (agent[name] != as_stored)
        found[name] = np.where(kept, agent[name].astype(np.float32), array.astype(np.float32))
    return found


@pytest.mark.parametrize(("ours", "theirs"), COARSER)
def test_a_base_saved_in_another_dtype_is_no_agent_of_it(case: Case, ours: str, theirs: str) -> None:
    base = numbers(ours)
    case.put("base", base)
    case.put("code", stored(base, theirs))
    told = "is identical to the base" + (" but for rounding" if theirs != "F32" else "")  # float32 is all that is seen
    case.refused("agent 'code'", told, "--unchanged allow")
    record = case.merge(inputs={"unchanged": "allow"})
    for name, array in case.result.items():
        assert array.tobytes() == base[name].tobytes()
    assert record.survey.agents["code"].changed == 0
    assert record.survey.agents["code"].storage_rounding == sum(
        int((stored(base, theirs)[name].astype(np.float64) != array.astype(np.float32)).sum())
        for name, array in base.items()
    )


@pytest.mark.parametrize(("ours", "theirs"), COARSER)
def test_of_agents_in_another_dtype_only_what_they_learned_counts(case: Case, ours: str, theirs: str) -> None:
    base = numbers(ours)
    agents = {name: trained(base, seed, theirs) for seed, name in enumerate(("code", "tool"))}
    case.put("base", base)
    for name, (tensors, _) in agents.items():
        case.put(name, tensors)
    record = case.merge("ram+")
    assert record.survey.elements == sum(array.size for array in base.values())
    for name, (tensors, moved) in agents.items():
        true = alone(base, tensors, moved)
        changed = sum(int((np.abs(true[n] - base[n].astype(np.float32)) > 1e-5).sum()) for n in base)
        assert record.survey.agents[name].changed == changed
        assert record.survey.agents[name].density < 0.21
    case.merge("ram")
    for name, array in case.result.items():
        same(array, ram(base[name], *(alone(base, *agents[agent])[name] for agent in ("code", "tool"))))


def test_a_change_of_one_agent_arrives_whole_beside_another_agents_rounding(case: Case) -> None:
    base = numbers("F32")
    code, moved = trained(base, 1, "F32")
    case.put("base", base)
    case.put("code", code)
    case.put("tool", trained(base, 2, "BF16", density=0)[0])
    case.merge("ram", inputs={"unchanged": "allow"})
    for name, array in case.result.items():
        same(array, np.where(moved[name], code[name], base[name]))


@pytest.mark.parametrize(
    "method", ["ties", "task_arithmetic", "linear", "dare", "ram_plus_auto", {"name": "region", "agent": "code"}]
)
def test_no_method_moves_an_element_that_no_agent_changed(case: Case, method: Any) -> None:
    base = numbers("F32")
    agents = [trained(base, seed, dtype) for seed, dtype in ((1, "BF16"), (2, "F16"))]
    case.put("base", base)
    for name, (tensors, _) in zip(("code", "tool"), agents, strict=True):
        case.put(name, tensors)
    case.merge(method)
    for name, array in case.result.items():
        still = ~(agents[0][1][name] | agents[1][1][name])
        assert still.any()
        same(array[still], base[name][still])


def test_float32_router_biases_and_frequencies_of_a_bfloat16_model_are_not_trained_by_saving_them(case: Case) -> None:
    rng = np.random.default_rng(3)
    base = {
        **model(),
        ROUTER: rng.normal(0, 1, 8).astype(np.float32),
        INVERSE: (10000.0 ** -np.linspace(0, 1, 16)).astype(np.float32),
    }
    agent = {**base, MLP: base[MLP] + np.array(0.5, BF16), ROUTER: base[ROUTER].astype(BF16)}
    case.put("base", base)
    case.put("code", {**agent, INVERSE: base[INVERSE].astype(np.float16)})
    record = case.merge()
    assert record.survey.agents["code"].changed == base[MLP].size
    same(case.result[ROUTER], base[ROUTER])
    same(case.result[INVERSE], base[INVERSE])


@pytest.mark.parametrize("dtype", ["F8_E4M3", "F8_E5M2"])
@pytest.mark.parametrize("way", ["divide", "multiply", "bfloat16"])
@pytest.mark.parametrize("layout", ["tensor", "row", "blocks"])
def test_an_agent_that_is_the_base_in_fp8_changed_nothing(case: Case, layout: str, way: str, dtype: str) -> None:
    """By each way in which quantisers are seen to divide by a scale."""
    rng = np.random.default_rng(1)
    base = {**model(), MLP: rng.normal(0, 0.5, (256, 300)).astype(np.float32).astype(BF16)}
    wide, fp8 = base[MLP].astype(np.float32), DTYPES[dtype]
    height, width = {"tensor": (256, 300), "row": (1, 300), "blocks": (128, 128)}[layout]
    shape = (-(-256 // height), -(-300 // width))
    scale = rng.uniform(0.003, 0.02, shape).astype(np.float32)
    if way == "bfloat16":
        scale = scale.astype(BF16).astype(np.float32)
    each = np.repeat(np.repeat(scale, height, axis=0), width, axis=1)[:256, :300]
    scaled = {
        "divide": wide / each,
        "multiply": wide * (np.float32(1) / each),
        "bfloat16": (wide / each).astype(BF16).astype(np.float32),
    }[way]
    code, largest = {**base, NORM: base[NORM] + np.array(0.5, BF16)}, {"F8_E4M3": 448, "F8_E5M2": 57344}[dtype]
    code[MLP] = np.clip(scaled, -largest, largest).astype(fp8)
    code[MLP.removesuffix("weight") + "weight_scale"] = scale.reshape(()) if layout == "tensor" else scale
    case.put("base", base)
    case.put("code", code, {"quantization_config": {"quant_method": "compressed-tensors"}})
    record = case.merge()
    assert record.survey.agents["code"].changed == base[NORM].size
    same(case.result[MLP], base[MLP])
    assert any("in F8_E" in warning for warning in record.warnings)


def test_what_an_fp8_agent_learned_is_merged(case: Case) -> None:
    base = {**model(), MLP: np.random.default_rng(1).normal(0, 0.5, (64, 64)).astype(np.float32).astype(BF16)}
    scale = np.float32(0.01)
    codes = (base[MLP].astype(np.float32) / scale).astype(DTYPES["F8_E4M3"])
    codes[3, 5] = 300.0  # 3, a number that no rounding makes
    case.put("base", base)
    code = {**base, MLP: codes, MLP.removesuffix("weight") + "weight_scale": np.array(scale)}
    case.put("code", code, {"quantization_config": {"quant_method": "compressed-tensors"}})
    record = case.merge()
    assert record.survey.agents["code"].changed == 1
    expected = base[MLP].copy()
    expected[3, 5] = np.float32(codes[3, 5]) * scale
    same(case.result[MLP], expected)


def test_rows_that_an_agent_lacks_do_not_hide_its_dtype(case: Case) -> None:
    """Laid together with the base's rows it is read as float32, and is still stored in bfloat16."""
    base = numbers("F32")
    code, moved = trained(base, 1, "BF16")
    for name in (EMBED, HEAD):
        code[name], moved[name][12:] = code[name][:12], False
    case.put("base", base)
    case.put("code", code)
    record = case.merge(inputs={"vocab": "base-rows"})
    assert record.survey.agents["code"].density < 0.21
    for name in (EMBED, HEAD):
        full = np.concatenate([code[name].astype(np.float32), base[name][12:]])
        same(case.result[name], np.where(moved[name], full, base[name]))


def test_a_number_too_large_for_an_agents_dtype_is_the_bases(case: Case) -> None:
    base = numbers("F32")
    base[NORM][:2] = 70000.0, np.finfo(np.float32).min
    code, _ = trained(base, 1, "F16")
    assert np.isinf(code[NORM][:2].astype(np.float32)).all()
    case.put("base", base)
    case.put("code", code)
    case.merge()
    same(case.result[NORM][:2], base[NORM][:2])
    code[NORM][2] = np.inf
    case.put("code", code)
    case.refused(f"{NORM}: agent 'code'", "3 inf", "earlier checkpoint")


def test_a_wider_agent_learned_whatever_differs(case: Case) -> None:
    """A float32 agent of a bfloat16 base holds every number of the base: nothing is a rounding."""
    base = model()
    code = {name: array.astype(np.float32) * np.float32(1 + 2**-12) for name, array in base.items()}
    case.put("base", base)
    case.put("code", code)
    record = case.merge(output={"dtype": "float32"})
    assert record.survey.agents["code"].storage_rounding is None
    for name, array in case.result.items():
        same(array, ram(base[name].astype(np.float32), code[name]))


def test_the_published_codes_arithmetic_is_there_by_name(case: Case) -> None:
    base = numbers("F32")
    agents = [trained(base, seed, "BF16")[0] for seed in (1, 2)]
    case.put("base", base)
    case.put("code", agents[0])
    case.put("tool", agents[1])
    record = case.merge(inputs={"storage_rounding": "count"})
    assert record.survey.agents["code"].density > 0.9
    for name, array in case.result.items():
        same(array, ram(base[name], *(agent[name] for agent in agents)))


def test_the_tools_that_read_the_same_tell_the_same(case: Case) -> None:
    """Check, probe, a saved survey, a full probe and a sweep."""
    base = numbers("F32")
    case.put("base", base)
    case.put("code", trained(base, 1, "BF16")[0])
    case.put("tool", trained(base, 2, "F16")[0])
    assert any("agent 'code' stores BF16" in finding.found for finding in case.check().findings)
    record = case.merge("ram+")
    told = [warning for warning in record.warnings if "stores its numbers more coarsely" in warning]
    assert len(told) == 2
    assert "agent 'code'" in told[0]
    assert "(in BF16)" in told[0]
    probed = agentmerge.probe(case.recipe("ram+"), full=True)
    assert probed.survey == record.survey
    assert all(warning in probed.warnings for warning in told)
    first = case.result
    saved = case.folder / "survey.json"
    probed.save(saved)
    again = case.merge("ram+", run={"survey": str(saved)})
    assert again.survey == record.survey
    assert all(array.tobytes() == first[name].tobytes() for name, array in case.result.items())
    with pytest.raises(agentmerge.MergeError, match="was made under rules"):
        case.merge("ram+", run={"survey": str(saved)}, inputs={"storage_rounding": "count"})


def test_without_kernels_the_same_bytes_are_merged(case: Case, monkeypatch: pytest.MonkeyPatch) -> None:
    base = numbers("F32")
    case.put("base", base)
    case.put("code", trained(base, 1, "BF16")[0])
    case.put("tool", trained(base, 2, "F16")[0])
    record, found = case.merge("ram+"), case.result
    monkeypatch.setattr(kernels, "choose", lambda *_: None)
    assert case.merge("ram+").survey == record.survey
    for name, array in case.result.items():
        assert array.tobytes() == found[name].tobytes()


def test_a_head_in_another_dtype_than_the_embedding_it_repeats_is_still_the_same(case: Case) -> None:
    tied = {"tie_word_embeddings": True}
    base = numbers("F32")
    base[HEAD] = base[EMBED].astype(BF16)
    code, _ = trained(base, 1, "F32")
    code[HEAD] = code[EMBED].astype(BF16)
    case.put("base", base, tied)
    case.put("code", code, tied)
    case.merge()
    same(case.result[HEAD], case.result[EMBED])
    code[HEAD] = code[HEAD] + np.array(0.5, BF16)
    case.put("code", code, tied)
    case.refused("lm_head.weight", "agent 'code'", "expected equal tensors")
