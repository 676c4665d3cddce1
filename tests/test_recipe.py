"""A recipe is read as it was meant, or refused with the path of what is wrong."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic import ValidationError

from agentmerge import MergeError, Recipe
from agentmerge.errors import RecipeError
from agentmerge.methods.ram import Ram
from agentmerge.tensors import DTYPES

if TYPE_CHECKING:
    from pathlib import Path

FULL = """\
base: Qwen/Qwen2.5-7B-Instruct
agents:
  code: Gen-Verse/ReasonFlux-Coder-7B
  tool: emrecanacikgoz/Qwen2.5-7B-Instruct-ToolRL-grpo-cold
  memory: {source: BytedTsinghua-SIA/RL-MemoryAgent-7B, weight: 1.0}
method: {name: ram_plus, rescale: 0.1, clip: 2.0, threshold: 1e-5}
rules:
  - {tensors: "*.mlp.*", rescale: 0.15}
  - {tensors: "lm_head*", take: base}
  - {tensors: "*norm*", skip: code}
inputs: {missing: error, extra: error, unchanged: error, vocab: strict, tokenizer_from: base}
output: {dtype: base, rounding: nearest, shard_size: 5GB}
seed: 0
run: {workers: auto, block_size: auto, runner: local, survey: null}
"""
SMALL: dict[str, Any] = {"base": "b", "agents": {"code": "c", "tool": "t"}, "method": "ram+"}


def loaded(tmp_path: Path, text: str) -> Recipe:
    path = tmp_path / "recipe.yaml"
    path.write_text(text)
    return Recipe.load(path)


def refusal(data: Any) -> str:
    with pytest.raises(RecipeError) as caught:
        Recipe.parse(data)
    return str(caught.value)


# as it was meant


def test_the_designs_recipe_is_read_and_says_the_defaults(tmp_path: Path) -> None:
    recipe = loaded(tmp_path, FULL)
    short = Recipe.parse({"base": recipe.base, "agents": recipe.agents, "method": "ram+", "rules": recipe.rules})
    assert recipe == short
    assert recipe.agent_names == ("code", "memory", "tool")
    assert recipe.output.shard_size == 5_000_000_000
    assert recipe.method == Ram()


def test_a_dumped_recipe_is_read_back_the_same_through_json_and_yaml(tmp_path: Path) -> None:
    recipe = loaded(
        tmp_path, FULL.replace("shard_size: 5GB", "shard_size: 1.5 GiB").replace("workers: auto", "workers: 3")
    )
    assert Recipe.parse(recipe.dump()) == recipe
    assert Recipe.parse(json.loads(json.dumps(recipe.dump()))) == recipe
    assert loaded(tmp_path, yaml.safe_dump(recipe.dump())) == recipe


@given(
    threshold=st.floats(0, 1e30, allow_subnormal=True),
    weight=st.floats(-1e9, 1e9),
    seed=st.integers(0, 2**64 - 1),
    scope=st.sampled_from(["model", "tensor"]),
    shard_size=st.integers(1, 10**15),
)
@settings(max_examples=40, deadline=None)
def test_any_settings_survive_the_round_trip(
    threshold: float, weight: float, seed: int, scope: str, shard_size: int
) -> None:
    recipe = Recipe.parse(
        {
            "base": "b",
            "agents": {"a-1.x+y_z": {"source": "s", "weight": weight}},
            "method": {"name": "ram", "threshold": threshold, "scope": scope},
            "seed": seed,
            "output": {"shard_size": shard_size},
        }
    )
    assert Recipe.parse(json.loads(json.dumps(recipe.dump()))) == recipe


@pytest.mark.parametrize("text", ["1e-5", "'1e-5'", "1.0e-5", "0.00001", "1E-5", "0.1e-4"])
def test_a_threshold_without_a_dot_is_a_number_although_yaml_says_text(tmp_path: Path, text: str) -> None:
    assert loaded(tmp_path, FULL.replace("threshold: 1e-5", f"threshold: {text}")).method.threshold == 1e-5


@pytest.mark.parametrize(
    ("written", "size"),
    [("5GB", 5_000_000_000), ("5GiB", 5 << 30), ("500 kb", 500_000), (123, 123), ("123", 123), ("1.5MB", 1_500_000)],
)
def test_sizes_are_numbers_of_bytes_or_words(written: Any, size: int) -> None:
    assert Recipe.parse({**SMALL, "output": {"shard_size": written}}).output.shard_size == size


@pytest.mark.parametrize("written", ["4KB", "4KiB", 4096, "8MB", "auto"])
def test_block_sizes_from_four_kilobytes_on(written: Any) -> None:
    assert Recipe.parse({**SMALL, "run": {"block_size": written}}).run.block_size in ("auto", 4000, 4096, 8_000_000)


def test_a_skip_of_one_agent_may_be_written_without_a_list() -> None:
    rules = [{"tensors": "*", "skip": "code"}, {"tensors": "*", "skip": ["code", "tool"]}]
    recipe = Recipe.parse({**SMALL, "rules": rules})
    assert [rule.skip for rule in recipe.rules] == [("code",), ("code", "tool")]


def test_a_rule_varies_the_method_and_keeps_the_rest() -> None:
    recipe = Recipe.parse({**SMALL, "rules": [{"tensors": "*", "rescale": "2e-1", "scope": "tensor"}]})
    assert recipe.rules[0].applied_to(recipe.method) == Ram(rescale=0.2, scope="tensor")
    assert recipe.rules[0].settings == {"rescale": "2e-1", "scope": "tensor"}


def test_a_recipe_can_not_be_changed_afterwards() -> None:
    recipe = Recipe.parse(SMALL)
    with pytest.raises(ValidationError, match="frozen"):
        recipe.seed = 3  # type: ignore[misc]
    with pytest.raises(ValidationError, match="frozen"):
        recipe.method.threshold = 3  # type: ignore[misc]


def test_a_method_may_be_given_as_a_value() -> None:
    assert Recipe.parse({**SMALL, "method": Ram(rescale=0.3)}).method == Ram(rescale=0.3)


@pytest.mark.parametrize(
    ("written", "dtype"),
    [
        ("bf16", "bfloat16"),
        ("BF16", "bfloat16"),
        ("torch.bfloat16", "bfloat16"),
        (DTYPES["BF16"], "bfloat16"),
        (DTYPES["BF16"].type, "bfloat16"),
        ("fp16", "float16"),
        ("half", "float16"),
        (np.float16, "float16"),
        ("fp32", "float32"),
        ("F32", "float32"),
        ("float", "float32"),
        (np.dtype("float32"), "float32"),
    ],
    ids=str,
)
def test_a_dtype_has_the_names_that_torch_numpy_and_safetensors_have_for_it(written: Any, dtype: str) -> None:
    assert Recipe.parse({**SMALL, "output": {"dtype": written}}).output.dtype == dtype


@pytest.mark.parametrize("written", ["fp64", "torch.float64", "int8", "bf17", "", None, 16, ["bf16"]], ids=str)
def test_a_dtype_that_no_output_has_is_refused_by_the_word_that_was_written(written: Any) -> None:
    assert "output.dtype" in refusal({**SMALL, "output": {"dtype": written}})


def test_paths_may_be_given_as_paths(tmp_path: Path) -> None:
    agents = {"code": tmp_path / "c", "tool": {"source": tmp_path / "t", "importance": tmp_path / "i"}}
    data = {"base": tmp_path / "b", "agents": agents, "method": "ram", "run": {"survey": tmp_path / "s.json"}}
    recipe = Recipe.parse(data)
    assert (recipe.base, recipe.agents["code"].source) == (str(tmp_path / "b"), str(tmp_path / "c"))
    assert (recipe.agents["tool"].importance, recipe.run.survey) == (str(tmp_path / "i"), str(tmp_path / "s.json"))
    assert Recipe.parse(json.loads(json.dumps(recipe.dump()))) == recipe


def test_thousands_of_rules_are_checked_once_for_each_of_their_settings(monkeypatch: pytest.MonkeyPatch) -> None:
    checked: list[Any] = []
    varied = Ram.varied
    monkeypatch.setattr(Ram, "varied", lambda self, *args: checked.append(args) or varied(self, *args))
    Recipe.parse({**SMALL, "rules": [{"tensors": f"*.{i}.*", "rescale": i % 3} for i in range(3000)]})
    assert len(checked) == 3


# refused, each with its path

CLIP = {"name": "ram+", "clip": 1}
COMPLAINTS: list[tuple[Any, str]] = [
    ([], "recipe: expected a mapping with base, agents and method, found []."),
    ("ram", "recipe: expected a mapping with base, agents and method, found 'ram'."),
    (None, "recipe: expected a mapping"),
    ({}, "recipe: base: missing.\nrecipe: agents: missing.\nrecipe: method: missing."),
    (
        {**SMALL, "rules": [{"tensors": "*", "weight": 0.5}]},
        "recipe: rules.0.weight: unknown field. An agent's weight stands at the agent",
    ),
    ({**SMALL, "bas": 1}, "recipe: bas: unknown field. Did you mean 'base'?"),
    ({**SMALL, "base": ""}, "recipe: base: String should have at least 1 character, found ''."),
    ({**SMALL, "base": 3}, "recipe: base: Input should be a valid string, found 3."),
    ({**SMALL, "agents": {}}, "recipe: agents: Dictionary should have at least 1 item"),
    ({**SMALL, "agents": ["a"]}, "recipe: agents: Input should be a valid dictionary, found ['a']."),
    ({**SMALL, "agents": {"base": "x"}}, "recipe: agents.base: 'base' is the base's own name."),
    ({**SMALL, "agents": {"a b": "x"}}, "recipe: agents.a b: String should match pattern"),
    ({**SMALL, "agents": {"../x": "x"}}, "recipe: agents.../x: String should match pattern"),
    ({**SMALL, "agents": {1: "x"}}, "recipe: agents.1: Input should be a valid string, found 1."),
    ({**SMALL, "agents": {"code": None}}, "recipe: agents.code: "),
    ({**SMALL, "agents": {"code": {"weight": 1}}}, "recipe: agents.code.source: missing."),
    (
        {**SMALL, "agents": {"code": {"source": "x", "wieght": 1}}},
        "recipe: agents.code.wieght: unknown field. Did you mean 'weight'?",
    ),
    (
        {**SMALL, "agents": {"my-agent": {"source": "x", "weight": "heavy"}}},
        "recipe: agents.my-agent.weight: Input should be a valid number, unable to parse string as a number",
    ),
    (
        {**SMALL, "agents": {"my-agent": {"source": "x", "wieght": 1}}},
        "recipe: agents.my-agent.wieght: unknown field. Did you mean 'weight'?",
    ),
    (
        {**SMALL, "agents": {"code": {"source": "x", "weight": float("nan")}}},
        "recipe: agents.code.weight: Input should be",
    ),
    ({**SMALL, "agents": {"code": {"source": "x", "weight": True}}}, "recipe: agents.code.weight: expected a number"),
    ({**SMALL, "method": "ram_pluss"}, "recipe: method.name: no method 'ram_pluss'. Did you mean 'ram_plus'?"),
    ({**SMALL, "method": None}, "recipe: method: expected a name or a mapping with a name, found None."),
    ({**SMALL, "method": {**CLIP, "clipp": 1}}, "recipe: method.clipp: unknown field. Did you mean 'clip'?"),
    ({**SMALL, "method": {**CLIP, "threshold": -1}}, "recipe: method.threshold: Input should be greater than or equal"),
    ({**SMALL, "method": {**CLIP, "rescale": True}}, "recipe: method.rescale: expected a number or text, not true"),
    ({**SMALL, "rules": [{"take": "base"}]}, "recipe: rules.0.tensors: missing."),
    ({**SMALL, "rules": {"tensors": "*"}}, "recipe: rules: Input should be a valid tuple"),
    (
        {**SMALL, "rules": [{"tensors": "*", "take": "cod"}]},
        "recipe: rules.0.take: no agent 'cod'. Did you mean 'code'?",
    ),
    (
        {**SMALL, "rules": [{"tensors": "*"}, {"tensors": "*", "skip": ["tol"]}]},
        "recipe: rules.1.skip: no agent 'tol'. Did you mean 'tool'?",
    ),
    ({**SMALL, "rules": [{"tensors": "*", "skip": ["base"]}]}, "recipe: rules.0.skip: no agent 'base'."),
    (
        {**SMALL, "rules": [{"tensors": "*", "recale": 1, "clop": 2}]},
        "recipe: rules.0.recale: unknown field. Did you mean 'rescale'?\n"
        "recipe: rules.0.clop: unknown field. Did you mean 'clip'?",
    ),
    ({**SMALL, "rules": [{"tensors": "*", "rescale": -1}]}, "recipe: rules.0.rescale: Input should be greater than"),
    ({**SMALL, "rules": [{"tensors": "*", "name": "ram"}]}, "recipe: rules.0.name: unknown field."),
    ({**SMALL, "inputs": {"mising": "base"}}, "recipe: inputs.mising: unknown field. Did you mean 'missing'?"),
    (
        {**SMALL, "inputs": {"missing": "ignore"}},
        "recipe: inputs.missing: Input should be 'error' or 'base', found 'ignore'.",
    ),
    (
        {**SMALL, "inputs": {"tokenizer_from": "coed"}},
        "recipe: inputs.tokenizer_from: no agent 'coed'. Did you mean 'code'?",
    ),
    ({**SMALL, "output": {"dtype": "bf17"}}, "recipe: output.dtype: Input should be 'base'"),
    ({**SMALL, "output": {"shard_size": 0}}, "recipe: output.shard_size: Input should be greater than or equal to 1"),
    ({**SMALL, "output": {"shard_size": "5 bananas"}}, "recipe: output.shard_size: could not interpret byte unit"),
    ({**SMALL, "output": {"shard_size": True}}, "recipe: output.shard_size: expected a number or text, not true"),
    ({**SMALL, "seed": -1}, "recipe: seed: Input should be greater than or equal to 0, found -1."),
    ({**SMALL, "seed": 2**64}, "recipe: seed: Input should be less than"),
    ({**SMALL, "seed": 1.5}, "recipe: seed: Input should be a valid integer"),
    ({**SMALL, "seed": True}, "recipe: seed: expected a number or text, not true"),
    ({**SMALL, "run": {"workers": 0}}, "recipe: run.workers: Input should be greater than or equal to 1, found 0."),
    ({**SMALL, "run": {"block_size": 100}}, "recipe: run.block_size: Input should be greater than or equal to 4000"),
    ({**SMALL, "run": {"runner": "spark"}}, "recipe: run.runner: Input should be 'local', found 'spark'."),
]


@pytest.mark.parametrize(("data", "message"), COMPLAINTS, ids=[message[:60] for _, message in COMPLAINTS])
def test_a_complaint_carries_its_path(data: Any, message: str) -> None:
    found = refusal(data)
    assert message in found
    assert "pydantic" not in found.lower()
    assert len(found) < 600


def test_every_complaint_has_a_line_of_its_own() -> None:
    lines = refusal({**SMALL, "sed": 1, "output": {"dtype": "x"}, "inputs": {"extra": 1}}).splitlines()
    assert sorted(line.split(": ")[1] for line in lines) == ["inputs.extra", "output.dtype", "sed"]


def test_complaints_are_both_merge_errors_and_value_errors() -> None:
    with pytest.raises(MergeError):
        Recipe.parse({})
    with pytest.raises(ValueError, match="missing"):
        Recipe.parse({})


# files


def test_a_file_is_named_in_its_complaints(tmp_path: Path) -> None:
    with pytest.raises(RecipeError, match=r"recipe\.yaml: sead: unknown field\. Did you mean 'seed'\?"):
        loaded(tmp_path, FULL.replace("seed: 0", "sead: 0"))


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("base: a\nbase: b\n", "'base' stands twice"),
        (FULL.replace("  tool:", "  code:"), "'code' stands twice"),
        ("base: [1, 2\n", "not valid YAML"),
        ("base: !!python/object:os.system {}\n", "not valid YAML"),
        ("? [a, b]\n: c\n", "not valid YAML"),
        ("base: 010\n", "010 is 10 in YAML 1.2"),
        ("base: !!int x\n", "not valid YAML"),
        ("base: !!timestamp x\n", "not valid YAML"),
        ("base: *nobody\n", "not valid YAML"),
        ("a: 1\n---\nb: 2\n", "not valid YAML"),
        ("\x00", "not valid YAML"),
        ("", "expected a mapping with base, agents and method, found None"),
        ("- a\n", "expected a mapping with base, agents and method, found ['a']"),
        ("[" * 700, "not valid YAML"),
    ],
    ids=lambda value: value[:30],
)
def test_what_is_no_recipe_is_refused_by_name(tmp_path: Path, text: str, message: str) -> None:
    with pytest.raises(RecipeError) as caught:
        loaded(tmp_path, text)
    assert message in str(caught.value)
    assert str(tmp_path / "recipe.yaml") in str(caught.value)


def test_a_file_that_is_not_there_a_folder_and_bytes_are_refused_by_name(tmp_path: Path) -> None:
    with pytest.raises(RecipeError, match="no such recipe file"):
        Recipe.load(tmp_path / "none.yaml")
    with pytest.raises(RecipeError, match="can't be read as a recipe"):
        Recipe.load(tmp_path)
    (tmp_path / "bytes.yaml").write_bytes(b"base: \xff\xfe\x00")
    with pytest.raises(RecipeError, match="can't be read as a recipe"):
        Recipe.load(tmp_path / "bytes.yaml")


@given(text=st.text(max_size=60))
@settings(max_examples=60, deadline=None)
def test_whatever_a_file_holds_it_is_read_or_refused(tmp_path_factory: pytest.TempPathFactory, text: str) -> None:
    path = tmp_path_factory.getbasetemp() / "any.yaml"
    path.write_bytes(text.encode("utf-8", "surrogatepass"))
    with pytest.raises(RecipeError):
        Recipe.load(path)


def test_yaml_merge_keys_still_work(tmp_path: Path) -> None:
    text = "d: &d {name: ram}\n" + FULL.replace(
        "{name: ram_plus, rescale: 0.1, clip: 2.0, threshold: 1e-5}", "{<<: *d}"
    )
    with pytest.raises(RecipeError, match="d: unknown field"):
        loaded(tmp_path, text)


def test_the_record_of_a_merge_is_a_recipe_and_no_other_record_is(tmp_path: Path) -> None:
    recipe = Recipe.parse({**SMALL, "seed": 3})
    path = tmp_path / "merge_record.json"
    path.write_text(json.dumps({"format": "agentmerge.record/1", "recipe": recipe.dump(), "output": {"shards": 1}}))
    assert Recipe.load(path) == recipe
    path.write_text(json.dumps({"format": "agentmerge.survey/1", "method": {"name": "ram"}, "sources": {}}))
    with pytest.raises(RecipeError) as caught:
        Recipe.load(path)
    assert len(caught.value.problems) == 1
    assert f"{path}: is a record (agentmerge.survey/1), expected a recipe" in str(caught.value)
    assert "--survey FILE" in str(caught.value)
