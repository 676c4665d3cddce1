"""The same model under other names: wrappers of trainers, generations of transformers, arrangements of experts."""

from __future__ import annotations

import numpy as np
import pytest

from tests.symptoms.conftest import BF16, EMBED, HEAD, MLP, NORM, Case, model, ram, same, trained

VISUAL = "visual.blocks.0.attn.qkv.weight"
REWRITES = {
    "torch.compile": lambda n: f"_orig_mod.{n}",
    "compiled blocks": lambda n: n.replace("layers.0.", "layers.0._orig_mod."),
    "DDP": lambda n: f"module.{n}",
    "FSDP": lambda n: "_fsdp_wrapped_module." + n.replace(".0.", ".0._fsdp_wrapped_module._checkpoint_wrapped_module."),
    "verl actor": lambda n: f"actor.module.{n}",
    "PEFT shell": lambda n: f"base_model.model.{n}",
    "inner model": lambda n: n.removeprefix("model."),
    "transformers 5 VLM": lambda n: n.replace("model.", "model.language_model.").replace("visual.", "model.visual."),
    "transformers 4 VLM": lambda n: "language_model." + n if not n.startswith("visual.") else n,
}  # fmt: skip


def vlm(seed=0):
    rng = np.random.default_rng(seed)
    return {**model(seed), VISUAL: rng.normal(0, 0.5, (6, 4)).astype(np.float32).astype(BF16)}


def named(tensors, rewrite):
    return {rewrite(name): array for name, array in tensors.items()}


@pytest.mark.parametrize("rewrite", REWRITES)
@pytest.mark.parametrize("turned", [False, True])
def test_an_agent_under_another_prefix_merges_under_the_bases_names(case: Case, rewrite, turned) -> None:
    base, agent = vlm(), trained(vlm(), 1)
    there, here = REWRITES[rewrite], lambda name: name
    ours, theirs = (there, here) if turned else (here, there)
    case.put("base", named(base, ours))
    case.put("code", named(agent, theirs))
    record = case.merge()
    assert list(case.result) == [ours(name) for name in base]
    for name, array in base.items():
        same(case.result[ours(name)], ram(array, agent[name]))
    assert any("tensors are read under the base's names" in warning for warning in record.warnings)
    assert case.check().ok


def test_a_tied_agent_under_another_prefix_with_a_redundant_head_merges(case: Case) -> None:
    base = {name: array for name, array in vlm().items() if name != HEAD}
    agent = trained(base, 1)
    there = named(agent, REWRITES["transformers 5 VLM"]) | {HEAD: agent[EMBED].copy()}
    case.put("base", base, {"tie_word_embeddings": True})
    case.put("code", there, {"tie_word_embeddings": True})
    case.merge()
    assert list(case.result) == list(base)


def test_a_prefix_that_leaves_tensors_over_is_refused_with_a_hint_that_names_it(case: Case) -> None:
    base = vlm()
    agent = {f"module.{n}": a for n, a in trained(base, 1).items() if n != NORM} | {"module.extra.weight": base[NORM]}
    case.put("base", base)
    case.put("code", agent)
    message = case.refused_early("lacks 5", f"another prefix, module.{EMBED} for the base's {EMBED}")
    assert f"1 of the base would be left over ({NORM};" in message
    assert "1 of agent 'code' would be left over (module.extra.weight;" in message
    hints = [finding for finding in case.check().findings if "another prefix" in f"{finding.found}{finding.todo}"]
    assert hints


def test_a_language_model_trained_without_its_eyes_merges_when_missing_tensors_are_allowed(case: Case) -> None:
    base = named(vlm(), REWRITES["transformers 5 VLM"])
    text = {name: array for name, array in trained(vlm(), 1).items() if name != VISUAL}
    case.put("base", base)
    case.put("code", text)
    case.refused_early("model.visual.blocks.0.attn.qkv.weight")
    case.merge(inputs={"missing": "base"})
    same(case.result["model.language_model.layers.0.mlp.up_proj.weight"], ram(vlm()[MLP], text[MLP]))


def test_names_that_would_become_one_are_not_matched(case: Case) -> None:
    base = model()
    case.put("base", base)
    agent = named(trained(base, 1), REWRITES["DDP"])
    case.put("code", {**agent, "module.module." + MLP: base[MLP]})
    case.refused_early("would become one")


def test_a_missing_tensor_without_any_prefix_is_told_plainly(case: Case) -> None:
    base = model()
    case.put("base", base)
    case.put("code", {n: a for n, a in trained(base, 1).items() if n != NORM})
    assert "prefix" not in case.refused_early(f"lacks 1: {NORM}")


def test_importance_under_another_prefix_is_matched_like_the_agent(case: Case) -> None:
    base, agent = model(), trained(model(), 1)
    case.put("base", base)
    path = case.put("code", named(agent, REWRITES["DDP"]))
    importance = {f"module.{n}": np.ones(a.shape, np.float32) for n, a in agent.items()}
    folder = case.put("importance", importance)
    case.agents = {"code": {"source": str(path), "importance": str(folder)}}
    case.merge("fisher")
    for name, array in agent.items():
        same(case.result[name], array)


# experts

STEM = "model.layers.0.mlp.experts"


def listed(experts=3, rows=4, width=10, seed=0):
    rng = np.random.default_rng(seed)
    shapes = {"gate_proj": (rows, width), "up_proj": (rows, width), "down_proj": (width, rows)}
    found = model(seed)
    for index in range(experts):
        for part, shape in shapes.items():
            found[f"{STEM}.{index}.{part}.weight"] = rng.normal(0, 0.5, shape).astype(np.float32).astype(BF16)
    return found


def stacked(tensors, experts=3, suffix="", prefix=""):
    found = {n: a for n, a in tensors.items() if ".experts." not in n}
    one = {
        part: [tensors[f"{STEM}.{i}.{part}.weight"] for i in range(experts)]
        for part in ("gate_proj", "up_proj", "down_proj")
    }
    pairs = zip(one["gate_proj"], one["up_proj"], strict=True)
    found[f"{STEM}.gate_up_proj{suffix}"] = np.stack([np.concatenate(pair) for pair in pairs])
    found[f"{STEM}.down_proj{suffix}"] = np.stack(one["down_proj"])
    return {prefix + name: array for name, array in found.items()}


@pytest.mark.parametrize("suffix", ["", ".weight"])
@pytest.mark.parametrize("prefix", ["", "module."])
def test_stacked_experts_of_an_agent_merge_into_a_base_that_lists_them(case: Case, suffix, prefix) -> None:
    base, agent = listed(), trained(listed(), 1)
    case.put("base", base)
    case.put("code", stacked(agent, suffix=suffix, prefix=prefix))
    record = case.merge(run={"block_size": 4096})
    assert list(case.result) == list(base)
    for name, array in base.items():
        same(case.result[name], ram(array, agent[name]))
    assert any("tensors of experts are read as the base's 9" in warning for warning in record.warnings)


@pytest.mark.parametrize("prefix", ["", "module."])
def test_listed_experts_of_an_agent_merge_into_a_base_that_stacks_them(case: Case, prefix) -> None:
    base, agent = listed(), trained(listed(), 1)
    case.put("base", stacked(base))
    case.put("code", {prefix + name: array for name, array in agent.items()})
    case.merge(run={"block_size": 4096})
    whole, theirs = stacked(base), stacked(agent)
    assert list(case.result) == list(whole)
    for name, array in whole.items():
        same(case.result[name], ram(array, theirs[name]))


def test_separately_stacked_gate_and_up_are_cut_too(case: Case) -> None:
    base, agent = listed(), trained(listed(), 1)
    theirs = stacked(agent)
    both = theirs.pop(f"{STEM}.gate_up_proj")
    theirs |= {f"{STEM}.gate_proj": both[:, :4], f"{STEM}.up_proj": both[:, 4:]}
    case.put("base", base)
    case.put("code", theirs)
    case.merge()
    for name, array in base.items():
        same(case.result[name], ram(array, agent[name]))


def test_listed_experts_of_different_dtypes_keep_their_bits_in_a_stack(case: Case) -> None:
    base = listed()
    agent = trained(base, 1)
    name = f"{STEM}.1.down_proj.weight"
    agent[name] = agent[name].astype(np.float32) + np.float32(2**-12)
    case.put("base", {n: a.astype(np.float32) for n, a in stacked(base).items()})
    case.put("code", agent)
    case.merge("ram")
    same(case.result[f"{STEM}.down_proj"][1], agent[name])


def transposed(found):
    return {n: a.transpose(0, 2, 1).copy() if ".experts." in n else a for n, a in found.items()}


def test_experts_stacked_the_other_way_round_are_refused(case: Case) -> None:
    """Llama 4, Qwen3-VL-MoE and gpt-oss store the transposed matrices."""
    case.put("base", listed())
    case.put("code", transposed(stacked(trained(listed(), 1))))
    case.refused_early("found shape [3, 10, 8], expected [experts, 8, 10]", "same version of transformers")


def test_a_square_stack_could_lie_either_way_and_is_refused(case: Case) -> None:
    case.put("base", listed(rows=5))
    case.put("code", stacked(trained(listed(rows=5), 1)))
    case.refused_early("A square matrix may be stored either way round")


@pytest.mark.parametrize("theirs", [2, 4])
@pytest.mark.parametrize("turned", [False, True])
def test_another_number_of_experts_is_refused(case: Case, theirs, turned) -> None:
    agent = trained(listed(theirs), 1)
    case.put("base", stacked(listed()) if turned else listed())
    case.put("code", agent if turned else stacked(agent, theirs))
    case.refused_early("experts")


def test_a_base_with_some_experts_listed_and_a_flat_stack_is_refused_calmly(case: Case) -> None:
    agent = stacked(trained(listed(), 1))
    agent[f"{STEM}.gate_up_proj"] = agent[f"{STEM}.gate_up_proj"].reshape(24, 10)
    case.put("base", listed())
    case.put("code", agent)
    case.refused_early("found shape [24, 10]")
    case.put("base", agent)
    case.put("code", trained(listed(), 1))
    case.refused_early("expected [experts, rows, columns]")
