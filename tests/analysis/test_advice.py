"""Every rule of advice on agents made for it, and its silence on plain ones."""

from __future__ import annotations

import re
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import pytest

from agentmerge.analysis.advice import RULES
from agentmerge.analysis.findings import findings_of
from agentmerge.methods.ram import Ram
from agentmerge.survey.full.question import Profile
from agentmerge.survey.overlap import Overlap
from agentmerge.survey.statistic import Survey
from agentmerge.tensors import DTYPES, Block, Stack, TensorSpec

if TYPE_CHECKING:
    from collections.abc import Callable

    from agentmerge.analysis.rows import Findings
    from agentmerge.tensors import Array

    Change = Callable[[str, Array, np.random.Generator], Array]

DOCUMENT = Path(__file__).parents[2] / "docs" / "reading-a-report.md"
LAYER = ("self_attn.q_proj", "self_attn.v_proj", "mlp.up_proj", "input_layernorm")
TENSORS = ("model.embed_tokens.weight", *(f"model.layers.{i}.{n}.weight" for i in range(4) for n in LAYER))
SIZE = 4096


def found(dtype: str = "BF16", threshold: float = 1e-5, **agents: Change) -> Findings:
    """The findings of agents that are made tensor by tensor from a random base."""
    base_random, survey, method = np.random.default_rng(0), Survey(), Ram(threshold=threshold)
    random = {name: np.random.default_rng(i + 1) for i, name in enumerate(agents)}
    profile = Profile(threshold)
    for name in TENSORS:
        base = (base_random.standard_normal(SIZE) * 0.02).astype(np.float32).astype(DTYPES[dtype]).astype(np.float32)
        values = [change(name, base.copy(), random[agent]) for agent, change in agents.items()]
        arrays = [array.astype(np.float32).astype(DTYPES[dtype]) for array in (base, *values)]
        stack = Stack(Block(TensorSpec(name, dtype, (SIZE,)), 0, SIZE), arrays[0], tuple(arrays[1:]), tuple(agents))
        for statistic in (method.overlap, profile):
            survey.add(statistic, name, statistic.observe(stack))
    specs = {name: TensorSpec(name, dtype, (SIZE,)) for name in TENSORS}
    assert isinstance(method.overlap, Overlap)
    return findings_of(tuple(agents), specs, survey, profile, method)


def moved(density: float, size: float = 0.05, sign: int = 0, only: str = "") -> Change:
    """Some elements moved by a share of themselves, in one direction or in both, in tensors whose name holds `only`."""

    def change(name: str, base: Array, random: np.random.Generator) -> Array:
        where = random.random(base.size) < (density if re.search(only, name) else 0)
        direction = np.full(base.size, sign) if sign else random.choice([-1, 1], base.size)
        return base + where * direction * (size * np.abs(base) + 1e-3 * size)

    return change


def unrelated(name: str, base: Array, random: np.random.Generator) -> Array:
    """An agent of another base."""
    return random.standard_normal(base.size) * 0.02


def said(findings: Findings) -> dict[str, list[str]]:
    """The texts by rule."""
    texts: dict[str, list[str]] = {}
    for item in findings.advice:
        texts.setdefault(item.rule, []).append(f"{', '.join(item.agents)}: {item.text}")
    return texts


def test_every_rule_is_documented() -> None:
    text = DOCUMENT.read_text(encoding="utf-8")
    for rule in RULES:
        assert f"`{rule.__name__}`" in text, rule.__name__
        assert rule.__doc__


def test_plain_sparse_agents_get_no_suspicion() -> None:
    rules = said(found(a=moved(0.1), b=moved(0.15)))
    assert not rules.keys() & {"right_base", "twins", "narrow", "adapter", "hidden", "uneven", "outlier", "grid"}
    assert "a, b: " in rules["training"][0]
    assert "sparse, as after RL" in rules["training"][0]


def test_dense_agents_look_supervised_and_the_base_is_doubted() -> None:
    rules = said(found(a=moved(1.0), b=moved(1.0)))
    assert "dense" in rules["training"][0]
    assert "probably not the checkpoint" in rules["right_base"][0]


def test_a_common_ancestor_is_told() -> None:
    def child(density: float) -> Change:
        own = moved(density)
        start = np.random.default_rng(99)

        def change(name: str, base: Array, random: np.random.Generator) -> Array:
            shift = np.random.default_rng(abs(hash(name)) % 1000 + int(start.integers(1)))
            return own(name, base + (shift.random(base.size) < 0.5) * 0.004, random)

        return change

    rules = said(found(a=child(0.05), b=child(0.05)))
    assert "common checkpoint" in rules["right_base"][0]
    assert "twins" not in rules


def test_twins_are_told() -> None:
    def same(name: str, base: Array, random: np.random.Generator) -> Array:
        return moved(0.2)(name, base, np.random.default_rng(5))

    assert "nearly one agent" in said(found(a=same, b=same))["twins"][0]


@pytest.mark.parametrize(
    ("only", "text"),
    [("norm", "in norms"), ("embed", "in the vocabulary"), ("layers.2.mlp", "It changed 1 of 17 tensors, in mlp up")],
)
def test_narrow_changes_are_told(only: str, text: str) -> None:
    rules = said(found(a=moved(0.3, only=only), b=moved(0.3)))
    assert rules["narrow"] == [line for line in rules["narrow"] if line.startswith("a: ")]
    assert text in rules["narrow"][0]


def test_changes_like_a_merged_adapter_are_told_and_the_rank_is_not_judged() -> None:
    rules = said(found(a=moved(1.0, only=r"[qv]_proj"), b=moved(0.1)))
    assert "100% of attention q, attention v" in rules["adapter"][0]
    assert "its rank is not judged" in rules["adapter"][0]
    assert "adapter" not in said(found(a=moved(0.3, only=r"[qv]_proj"), b=moved(0.1)))


def test_hidden_changes_are_told() -> None:
    assert "stay below the threshold 0.0005" in said(found(a=moved(0.3), b=moved(0.3), threshold=5e-4))["hidden"][0]


def test_an_agent_of_another_base_is_told_although_the_others_are_sparse() -> None:
    rules = said(found(a=moved(0.05), b=unrelated, c=moved(0.3)))
    (text,) = rules["foreign"]
    assert text.startswith("b: ")
    assert "trained from another base" in text
    dense = moved(1.0, size=0.3)  # farther than any training that is known here
    assert "foreign" not in said(found(a=dense, b=moved(0.05)))


def test_uneven_agents_are_told() -> None:
    rules = said(found(a=moved(0.02), b=moved(0.5, size=0.2)))
    assert "task vector of b is" in rules["uneven"][0]


def test_an_agent_that_went_much_further_than_all_others_is_suspected_and_no_more() -> None:
    near, far = moved(0.2), moved(0.5, size=0.4)
    rules = said(found(a=near, b=near, c=far))
    assert rules["outlier"][0].startswith("c: ")
    assert "Weights alone can't tell" in rules["outlier"][0]
    assert "outlier" not in said(found(a=near, c=far))  # of two nobody knows which one is unusual
    assert "outlier" not in said(found(a=near, b=far, c=far))


def test_conflict_suggests_what_won_and_agreement_says_nothing() -> None:
    text = said(found(a=moved(0.5), b=moved(0.5)))["conflict"][0]
    assert "`ram_plus_auto`" in text
    assert "elect" not in text
    assert "conflict" not in said(found(a=moved(0.5, sign=1), b=moved(0.5, sign=1)))


def test_overlap_that_only_the_grid_makes_is_told() -> None:
    def fine(name: str, base: Array, random: np.random.Generator) -> Array:
        where = random.random(base.size) < np.where(np.abs(base) < 2.0**-7, 0.6, 0.02)
        return base + where * 2e-4

    rules = said(found(a=fine, b=fine))
    assert "they meet where the stored grid is fine" in rules["grid"][0]
    assert "grid" not in said(found(a=moved(0.3), b=moved(0.3)))


def test_rounding_advice_needs_single_steps_and_a_narrow_dtype() -> None:
    steps = {"a": moved(0.3, size=2.0**-7), "b": moved(0.3, size=2.0**-7)}
    rules = said(found(**steps))
    assert len(rules["storage"]) == 2
    assert "--rounding stochastic" in rules["storage"][0]
    assert "rounds changes back to the base" in rules["storage"][1]
    assert "storage" not in said(found("F32", **steps))


def test_the_method_depends_on_what_ram_keeps() -> None:
    assert "use `wudi_auto`" in said(found(a=moved(0.5), b=moved(0.5)))["method"][0]
    assert "RAM keeps most" in said(found(a=moved(0.05), b=moved(0.05)))["method"][0]
    assert "method" not in said(found(a=moved(0.5)))
