"""RAM, RAM+ and RAM+s give what public implementations give, and what one can work out by hand."""

from __future__ import annotations

import json
from math import inf
from typing import TYPE_CHECKING, Any

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from agentmerge import merge, probe
from agentmerge.errors import DataError
from agentmerge.methods.ram import Ram
from agentmerge.survey.overlap import Overlap
from agentmerge.tensors import Block, Stack, TensorSpec
from agentmerge.testing import (
    CONFIG,
    Sources,
    assert_same_bits,
    make_agents,
    random_base,
    random_stack,
    read_checkpoint,
    survey_of,
    write_checkpoint,
)

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from agentmerge.record import MergeRecord
    from agentmerge.survey.statistic import Survey
    from agentmerge.tensors import Array

REFERENCES: dict[str, dict[str, Any]] = {
    "ram__mrl_arm": {"name": "ram"},
    "ram__mrl_arm_r_v2_factor_1.0": {"name": "ram"},
    "ram__mergekit_ram": {"name": "ram"},
    "ram_plus_reference__mrl_arm_r_v2_factor_1.2": {"name": "ram_plus", "rescale": 0.2, "clip": 1.0},
    "ram_plus_soft__mrl_arm_r_factor_1.1": {"name": "ram_plus", "curve": "soft", "rescale": 0.1},
    "ram_plus_tensor__mergekit_ramplus_tl_alpha_2.0": {
        "name": "ram_plus",
        "scope": "tensor",
        "rescale": 0.1,
        "clip": 2.0,
    },
}
STEP = 2.0**-9  # exact in float32 and far above the threshold


def golden_sources(root: Path) -> Sources:
    return Sources(root / "base", {name: root / name for name in ("code", "tool", "memory")})


def ulps(found: Array, expected: Array) -> Array:
    """Steps of float32 between two arrays."""

    def ordered(values: Array) -> Array:
        bits = np.ascontiguousarray(values, np.float32).view(np.int32).astype(np.int64)
        return np.where(bits < 0, -(bits & 0x7FFFFFFF), bits)

    return np.abs(ordered(found) - ordered(expected))


def stack_of(base: Any, agents: Sequence[Any], name: str = "w", weights: tuple[float, ...] = ()) -> Stack:
    arrays = [np.array(values, np.float32) for values in (base, *agents)]
    block = Block(TensorSpec(name, "F32", (arrays[0].size,)), 0, arrays[0].size)
    return Stack(block, arrays[0], tuple(arrays[1:]), tuple("abcdef"[: len(agents)]), weights)


def merged(method: Ram, *stacks: Stack) -> list[Array]:
    survey = survey_of(method, stacks)
    return [method.merge(stack, survey) for stack in stacks]


# public implementations


@pytest.mark.parametrize("reference", REFERENCES)
def test_the_float32_output_is_within_one_ulp_of_the_public_implementation(
    golden: Path, tmp_path: Path, reference: str
) -> None:
    recipe = golden_sources(golden).recipe(REFERENCES[reference], output={"dtype": "float32"})
    merge(recipe, tmp_path / "out")
    found = read_checkpoint(tmp_path / "out")
    expected = read_checkpoint(golden / "expected" / f"{reference}.safetensors")
    assert found.keys() == expected.keys()
    for name, array in found.items():
        assert array.dtype == np.float32
        assert int(ulps(array, expected[name]).max()) <= 1, name


@pytest.mark.parametrize("reference", REFERENCES)
def test_the_bfloat16_output_is_the_golden_one_rounded(golden: Path, tmp_path: Path, reference: str) -> None:
    """A float32 step between the two could straddle a tie and round apart; on these numbers it never does."""
    merge(golden_sources(golden).recipe(REFERENCES[reference]), tmp_path / "out")
    expected = read_checkpoint(golden / "expected" / f"{reference}.safetensors")
    for name, array in read_checkpoint(tmp_path / "out").items():
        assert_same_bits(array, expected[name].astype(ml_dtypes.bfloat16), name)


def test_counts_and_scales_are_those_of_overlap_json(golden: Path) -> None:
    expected = json.loads((golden / "expected" / "overlap.json").read_text())
    variants: dict[str, dict[str, Any]] = {
        "scale_paper_r0.1_alpha2": {"name": "ram_plus"},
        "scale_reference_code_factor1.2": {"name": "ram_plus", "rescale": 0.2, "clip": 1.0},
        "scale_soft_r0.1": {"name": "ram_plus_soft"},
    }
    for scale, method in variants.items():
        seen = probe(golden_sources(golden).recipe(method)).survey
        assert seen.elements == expected["elements"]
        assert seen.threshold == expected["threshold"]
        for name, agent in expected["agents"].items():
            found = seen.agents[name]
            assert found.changed == agent["changed"]
            assert found.density == agent["density"]
            assert found.unique == agent["unique"]
            assert found.shared == agent["shared"]
            assert found.changed_by_exactly == agent["changed_by_exactly_k_agents"]
            assert found.overlap_unique_ratio == agent["overlap_unique_ratio"]
            assert found.scale == pytest.approx(agent[scale], rel=1e-15)


# by hand


def test_the_eight_element_oracle() -> None:
    a = [0.1, 0.1, 0.1, 0.1, 0, 0, 0, 0]
    b = [0, 0, 0.2, 0.2, 0.2, 0, 0, 0]
    stack = stack_of(np.zeros(8), [a, b])
    counts = Overlap().observe(stack)
    assert counts.ratio == (1.0, 2.0)
    assert Ram().scales(counts) == (1.1, 1.2)
    (plus,) = merged(Ram(), stack)
    np.testing.assert_allclose(plus, [0.11, 0.11, 0.15, 0.15, 0.24, 0, 0, 0], rtol=2e-7)
    (plain,) = merged(Ram(name="ram"), stack)
    np.testing.assert_allclose(plain, [0.1, 0.1, 0.15, 0.15, 0.2, 0, 0, 0], rtol=2e-7)
    (soft,) = merged(Ram(name="ram_plus_soft"), stack)  # 1 + 0.1 * 2/4 and 1 + 0.1 * 2/3
    np.testing.assert_allclose(soft, [0.105, 0.105, 0.15, 0.15, 0.2 * (1 + 0.2 / 3), 0, 0, 0], rtol=2e-7)


def test_the_ratio_is_over_the_whole_model_or_over_each_tensor() -> None:
    """Two tensors. Agent a: one unique element in each, three shared in the second: rho 3/2; 0 and 3 by tensor."""
    left = stack_of([0, 0], [[1, 0], [0, 1]], "left")
    right = stack_of([0, 0, 0, 0, 0], [[1, 1, 1, 1, 0], [0, 1, 1, 1, 1]], "right")
    model = merged(Ram(rescale=0.5, clip=10), left, right)
    np.testing.assert_array_equal(model[0], [1.75, 1.75])
    np.testing.assert_array_equal(model[1], [1.75, 1, 1, 1, 1.75])
    tensor = merged(Ram(rescale=0.5, clip=10, scope="tensor"), left, right)
    np.testing.assert_array_equal(tensor[0], [1, 1])
    np.testing.assert_array_equal(tensor[1], [2.5, 1, 1, 1, 2.5])


def test_the_two_scopes_differ_through_the_whole_engine_too(tmp_path: Path) -> None:
    base = {"left": np.zeros(2, np.float32), "right": np.zeros(5, np.float32)}
    a = {"left": np.array([1, 0], "f4"), "right": np.array([1, 1, 1, 1, 0], "f4")}
    b = {"left": np.array([0, 1], "f4"), "right": np.array([0, 1, 1, 1, 1], "f4")}
    folders = {n: write_checkpoint(tmp_path / n, t) for n, t in (("base", base), ("a", a), ("b", b))}
    sources = Sources(folders.pop("base"), folders)
    for scope, lone, crowded in (("model", 1.75, 1.75), ("tensor", 1.0, 2.5)):
        method = {"name": "ram_plus", "rescale": 0.5, "clip": 10, "scope": scope}
        record = merge(sources.recipe(method), tmp_path / scope)
        found = read_checkpoint(tmp_path / scope)
        np.testing.assert_array_equal(found["left"], [lone, lone])
        np.testing.assert_array_equal(found["right"], [crowded, 1, 1, 1, crowded])
        assert record.survey.agents["a"].scale == (1.75 if scope == "model" else None)


def test_one_agent_alone_is_taken_as_it_is() -> None:
    stack = random_stack(1, agents=1)
    (result,) = merged(Ram(), stack)  # nothing is shared, so rho is 0 and the scale 1
    tau = stack.task_vectors()[0]
    kept = np.where(np.abs(tau) > np.float32(1e-5), stack.agents[0].astype("f4"), stack.base.astype("f4"))
    assert_same_bits(result, kept, "one agent")


def test_an_agent_without_a_unique_element_has_an_infinite_ratio_and_the_clip_as_scale() -> None:
    stack = stack_of([0, 0, 0], [[1, 1, 0], [1, 1, 1]])
    counts = Overlap().observe(stack)
    assert counts.ratio == (inf, 2.0)
    assert Ram(rescale=0.1, clip=3.0).scales(counts) == pytest.approx((1.3, 1.2))
    assert Ram(curve="soft").scales(counts) == pytest.approx((1.1, 1 + 0.1 * 2 / 3))


def test_an_agent_that_changed_nothing_has_ratio_0_and_scale_1() -> None:
    counts = Overlap().observe(stack_of([0, 0], [[0, 0], [1, 0]]))
    assert counts.ratio == (0.0, 0.0)
    for method in (Ram(), Ram(curve="soft"), Ram(name="ram")):
        assert method.scales(counts) == (1.0, 1.0)


def test_where_nobody_changed_anything_minus_zero_stays_minus_zero() -> None:
    stack = stack_of([-0.0, 0.0, -0.0], [[-0.0, 0.0, 0.0], [-0.0, -0.0, 0.0]])
    for method in (Ram(), Ram(name="ram"), Ram(scope="tensor")):
        (result,) = merged(method, stack)
        assert_same_bits(result, np.array([-0.0, 0.0, -0.0], np.float32), "-0.0")


def test_minus_zero_of_the_base_survives_the_engine(tmp_path: Path) -> None:
    base = {"w": np.array([-0.0, 1, -0.0, 1] * 20, ml_dtypes.bfloat16)}
    sources = make_agents(tmp_path / "in", base=base, densities=(0, 0, 0))
    trained = {"w": base["w"].copy()}
    trained["w"][1] = 2
    write_checkpoint(sources.agents["tool"], trained)
    merge(sources.recipe("ram+", inputs={"unchanged": "allow"}), tmp_path / "out")
    assert_same_bits(read_checkpoint(tmp_path / "out")["w"], trained["w"], "-0.0")


def test_at_scale_exactly_1_a_unique_element_is_the_agents_own_value() -> None:
    """Base + (agent - base) would lose the agent's last bits here."""
    base, agent = np.float32(1.0), np.float32(3e-8)
    assert base + (agent - base) != agent
    (result,) = merged(Ram(name="ram"), stack_of([base], [[agent], [base]]))
    assert result[0] == agent


@pytest.mark.parametrize("threshold", [1e-5, 0.1, 0.0])
def test_the_threshold_is_strict_and_float32(threshold: float) -> None:
    limit = np.float32(threshold)
    beyond = np.nextafter(limit, np.float32(1), dtype=np.float32)
    stack = stack_of([0, 0, 0, 0], [[limit, beyond, -limit, -beyond]])
    (result,) = merged(Ram(threshold=threshold), stack)
    np.testing.assert_array_equal(result, [0, beyond, 0, -beyond])
    assert Overlap(threshold).observe(stack).changed == (2,)
    assert threshold in (0.0, float(limit)) or float(limit) != threshold  # 1e-5 and 0.1 are no float32 numbers


def test_the_threshold_is_strict_through_the_compiled_kernel_too(tmp_path: Path) -> None:
    limit = np.float32(1e-5)
    beyond = np.nextafter(limit, np.float32(1), dtype=np.float32)
    base = write_checkpoint(tmp_path / "base", {"w": np.zeros(130, np.float32)})
    agent = write_checkpoint(tmp_path / "a", {"w": np.tile(np.array([limit, beyond], np.float32), 65)})
    record = merge(Sources(base, {"a": agent}).recipe("ram"), tmp_path / "out")
    assert record.survey.agents["a"].changed == 65
    np.testing.assert_array_equal(read_checkpoint(tmp_path / "out")["w"], np.tile([0, beyond], 65).astype("f4"))


def test_weights_multiply_every_task_vector_and_leave_the_counts_alone() -> None:
    stack = stack_of([0, 0, 0], [[1, 1, 0], [0, 1, 1]], weights=(0.5, 2.0))
    (result,) = merged(Ram(rescale=0.5, clip=2.0), stack)  # rho 1 each: scale 1.5
    np.testing.assert_array_equal(result, [0.75, 1.25, 3.0])
    (plain,) = merged(Ram(name="ram"), stack)
    np.testing.assert_array_equal(plain, [0.5, 1.25, 2.0])


def test_shared_elements_are_averaged_over_those_who_changed_them_only() -> None:
    (result,) = merged(Ram(), stack_of([1], [[2], [1], [4]]))
    np.testing.assert_array_equal(result, [1 + (1 + 3) / 2])


@given(
    seed=st.integers(0, 10_000),
    agents=st.integers(1, 5),
    elements=st.sampled_from([0, 1, 63, 200]),
    method=st.sampled_from([Ram(), Ram(name="ram"), Ram(name="ram_plus_soft"), Ram(scope="tensor", clip=0.2)]),
)
@settings(max_examples=40, deadline=None)
def test_the_definition_equals_a_loop_over_single_elements(seed: int, agents: int, elements: int, method: Ram) -> None:
    rng = np.random.default_rng(seed)
    weights = tuple(float(w) for w in rng.choice([1.0, 0.7, 1.3], agents))
    stack = random_stack(seed, agents=agents, elements=elements, dtypes=("BF16", "F16", "F32"), weights=weights)
    survey = survey_of(method, [stack])
    with np.errstate(all="ignore"):
        assert_same_bits(method.merge(stack, survey), looped(method, stack), str(method))


def looped(method: Ram, stack: Stack) -> Array:
    """The design's words, an element at a time."""
    one = np.float32
    base = [one(x) for x in stack.base]
    taus = [[one(one(x) - b) for x, b in zip(agent, base, strict=True)] for agent in stack.agents]
    changed = [[abs(x) > one(method.threshold) for x in tau] for tau in taus]
    count = [sum(row[i] for row in changed) for i in range(len(base))]
    result = []
    for i, b in enumerate(base):
        who = [t for t in range(len(taus)) if changed[t][i]]
        weight = [one(stack.weights[t]) for t in who]
        if not who:
            result.append(b)
        elif len(who) == 1:
            scale = scale_by_hand(method, changed[who[0]], count)
            own = scale == 1 and weight[0] == 1
            result.append(one(stack.agents[who[0]][i]) if own else one(b + scale * (weight[0] * taus[who[0]][i])))
        else:
            total = one(0)
            for w, t in zip(weight, who, strict=True):
                total = one(total + w * taus[t][i])
            result.append(one(b + total / one(len(who))))
    return np.array(result, np.float32)


def scale_by_hand(method: Ram, changed: list[Any], count: list[int]) -> np.float32:
    unique = sum(1 for i, c in enumerate(count) if changed[i] and c == 1)
    shared = sum(1 for i, c in enumerate(count) if changed[i] and c > 1)
    if method.curve == "soft":
        return np.float32(1 + method.rescale * (shared / (shared + unique) if shared + unique else 0))
    ratio = shared / unique if unique else (inf if shared else 0.0)
    return np.float32(1 + method.rescale * min(max(ratio, 0), method.clip))


# a tied head

TIED = {**CONFIG, "tie_word_embeddings": True}


def tied_sources(folder: Path, *, head: bool, config: dict[str, Any] = TIED) -> Sources:
    """The same base and agents, their head stored beside the embedding or not."""
    base = random_base(3)
    del base["lm_head.weight"]
    sources = make_agents(folder, base=base, config=config)
    if head:
        for path in (sources.base, *sources.agents.values()):
            tensors = read_checkpoint(path)
            write_checkpoint(path, {**tensors, "lm_head.weight": tensors["model.embed_tokens.weight"]}, config=config)
    return sources


@pytest.mark.parametrize("rounding", ["nearest", "stochastic"])
@pytest.mark.parametrize("name", ["ram", "ram+", "ram+s"])
def test_a_tied_head_counts_as_if_it_were_not_there(tmp_path: Path, name: str, rounding: str) -> None:
    records: dict[bool, MergeRecord] = {}
    for head in (False, True):
        sources = tied_sources(tmp_path / str(head), head=head)
        records[head] = merge(sources.recipe(name, output={"rounding": rounding}), tmp_path / f"out-{head}")
    assert records[True].survey == records[False].survey
    assert records[True].rounding == records[False].rounding
    without, stored = read_checkpoint(tmp_path / "out-False"), read_checkpoint(tmp_path / "out-True")
    assert_same_bits(stored["lm_head.weight"], stored["model.embed_tokens.weight"], "the head")
    for tensor, array in without.items():
        assert_same_bits(stored[tensor], array, tensor)


def test_an_untied_head_is_counted_by_itself(tmp_path: Path) -> None:
    sources = tied_sources(tmp_path / "in", head=True, config=CONFIG)
    elements = probe(sources.recipe("ram")).survey.elements
    assert elements == sum(array.size for array in read_checkpoint(sources.base).values())


def test_another_tensor_whose_name_ends_like_a_heads_does_not_hide_the_tie(tmp_path: Path) -> None:
    sources = tied_sources(tmp_path / "in", head=True)
    for path in (sources.base, *sources.agents.values()):
        tensors = {
            **read_checkpoint(path),
            "model.layers.0.attention.output.weight": np.ones((3, 3), ml_dtypes.bfloat16),
        }
        write_checkpoint(path, tensors, config=TIED)
    tensors = read_checkpoint(sources.base)
    elements = sum(array.size for array in tensors.values()) - tensors["lm_head.weight"].size
    assert probe(sources.recipe("ram")).survey.elements == elements


def test_rules_for_a_tied_head_give_way_to_those_of_the_embedding_with_a_warning(tmp_path: Path) -> None:
    sources = tied_sources(tmp_path / "in", head=True)
    record = merge(sources.recipe("ram", rules=[{"tensors": "lm_head*", "take": "base"}]), tmp_path / "out")
    assert any("lm_head.weight is tied to model.embed_tokens.weight" in warning for warning in record.warnings)
    found = read_checkpoint(tmp_path / "out")
    assert_same_bits(found["lm_head.weight"], found["model.embed_tokens.weight"], "the head")


def test_a_head_that_is_not_the_embedding_although_tied_is_refused_by_name(tmp_path: Path) -> None:
    sources = tied_sources(tmp_path / "in", head=True)
    tensors = read_checkpoint(sources.agents["tool"])
    tensors["lm_head.weight"] = tensors["lm_head.weight"] + tensors["lm_head.weight"]
    write_checkpoint(sources.agents["tool"], tensors, config=TIED)
    with pytest.raises(DataError, match=r"lm_head\.weight: in agent 'tool'.*differs from model\.embed_tokens\.weight"):
        merge(sources.recipe("ram"), tmp_path / "out")
    assert not (tmp_path / "out").exists()


# questions


def test_ram_asks_nothing_and_ram_plus_asks_once() -> None:
    stack = random_stack(0)
    survey: Survey = survey_of(Ram(name="ram"), [stack])
    assert Ram(name="ram").ask(survey) == ()
    assert Ram().ask(survey) == (Overlap(),)
    assert Ram().ask(survey_of(Ram(), [stack])) == ()
    assert Ram(threshold=1e-3).ask(survey_of(Ram(), [stack])) == (Overlap(1e-3),)


def test_scales_of_the_record_are_one_for_ram_and_absent_for_tensor_scope() -> None:
    stack = random_stack(0)
    survey = survey_of(Ram(), [stack])
    assert Ram(name="ram").told(survey, stack.names).scales == (1.0, 1.0, 1.0)
    assert Ram(scope="tensor").told(survey, stack.names).scales is None
    assert Ram().told(survey, stack.names).scales == Ram().scales(survey.total(Overlap()))
