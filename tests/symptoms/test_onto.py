"""What agents learned from one base is wanted on another checkpoint of the same shapes."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

import agentmerge
from agentmerge.errors import RecipeError
from agentmerge.tensors import DTYPES
from agentmerge.testing import assert_same_bits, read_checkpoint
from tests.engine.test_resuming import Killed, KillInMap
from tests.symptoms.conftest import BF16, CONFIG, EMBED, HEAD, MLP, NORM, Case, model, tokenizer, trained, words

if TYPE_CHECKING:
    from agentmerge.tensors import Array

INSTRUCT = {"rope_theta": 10000.0, "note": "instruct"}


def newer(dtype: str = "BF16", seed: int = 9, **changed: Array) -> dict[str, Array]:
    """Another checkpoint of the same shapes: every number is another, some are zeros of both signs."""
    tensors = model(seed, dtype=dtype)
    tensors[NORM][:2] = np.array([0.0, -0.0], tensors[NORM].dtype)
    return tensors | changed


def put(case: Case, onto: dict[str, Array], **of_onto: Any) -> None:
    base = model()
    case.put("base", base, **{"README.md": b"---\nlicense: mit\n---\n"})
    case.put("code", trained(base, 1))
    case.put("tool", trained(base, 2))
    case.put("other", onto, **({"config": INSTRUCT} | of_onto))
    del case.agents["other"]


def merged(case: Case, method: Any = "ram", **sections: Any) -> dict[str, Array]:
    case.merge(method, onto=str(case.folder / "other"), **sections)
    return case.result


def ram_onto(base: Array, onto: Array, *agents: Array) -> Array:
    """RAM's change of the base, added to another checkpoint, by the formula."""
    ours, there = base.astype(np.float32), onto.astype(np.float32)
    tau = np.stack([agent.astype(np.float32) - ours for agent in agents])
    changed = np.abs(tau) > 1e-5
    number = np.maximum(changed.sum(axis=0), 1).astype(np.float32)
    update = np.where(changed, tau, 0).sum(axis=0, dtype=np.float32) / number
    return np.where(changed.any(axis=0), (there + update).astype(onto.dtype), onto)


@pytest.mark.parametrize("dtype", ["BF16", "F16", "F32", "F64"])
def test_the_changes_are_added_to_the_other_checkpoint_on_its_own_grid(case: Case, dtype: str) -> None:
    onto = newer(dtype)
    put(case, onto)
    found, base = merged(case), model()
    for name, array in found.items():
        expected = ram_onto(base[name], onto[name], trained(base, 1)[name], trained(base, 2)[name])
        assert_same_bits(array, expected, name)
        assert not np.array_equal(array, onto[name])


def test_a_rounding_of_the_agents_is_no_change_of_the_other_checkpoint(case: Case) -> None:
    rng = np.random.default_rng(4)
    base = {name: rng.normal(0, 0.5, array.shape).astype(np.float32) for name, array in model().items()}
    coarse = {name: array.astype(BF16) for name, array in base.items()}
    onto = newer("F32")
    put(case, onto)
    case.put("base", base)
    moved = coarse | {MLP: (coarse[MLP].astype(np.float32) * 2).astype(BF16)}
    case.put("code", moved)
    case.put("tool", coarse | {NORM: (coarse[NORM].astype(np.float32) * 2).astype(BF16)})
    found = merged(case)
    for name in (EMBED, HEAD):
        assert_same_bits(found[name], onto[name], name)
    assert_same_bits(found[MLP], onto[MLP] + (moved[MLP].astype(np.float32) - base[MLP]), MLP)


def test_output_dtype_wins_over_that_of_the_other_checkpoint(case: Case) -> None:
    put(case, newer("F16"))
    assert {array.dtype for array in merged(case, output={"dtype": "float32"}).values()} == {np.dtype(np.float32)}


@pytest.mark.parametrize(
    "method", ["ram+", "linear", "ties", {"name": "dare", "then": "ties"}, "model_stock", "slerp", "iso_c", "ram+auto"]
)
def test_any_method_can_be_put_onto_another_checkpoint(case: Case, method: Any) -> None:
    onto = newer("F32")
    put(case, onto)
    wanted = {"output": {"dtype": "float32"}}
    found = merged(case, method, **wanted)
    case.merge(method, **wanted)
    for name, array in case.result.items():
        base = model()[name].astype(np.float32)
        update = array - base
        expected = np.where(update == 0, onto[name], onto[name] + update)
        assert_same_bits(found[name], expected, f"{method}: {name}")


def test_config_tokenizer_and_licence_are_those_of_the_other_checkpoint(case: Case) -> None:
    tokens = tokenizer(words(12))
    put(case, newer("F16"), **tokens, **{"README.md": b"---\nlicense: apache-2.0\n---\n", "extra.txt": b"own"})
    (case.folder / "base" / "tokenizer.json").write_bytes(tokens["tokenizer.json"])
    record = case.merge(onto=str(case.folder / "other"))
    assert case.config["note"] == "instruct"
    assert case.config["torch_dtype"] == "float16"
    assert (case.out / "extra.txt").read_bytes() == b"own"
    card = (case.out / "README.md").read_text()
    assert "license: apache-2.0" in card
    assert f"| onto | `{case.folder / 'other'}` |" in card
    assert record.recipe["onto"] == record.sources["onto"]["source"] == str(case.folder / "other")
    assert set(record.sources) == {"base", "onto", "code", "tool"}


def test_a_rule_that_takes_the_base_takes_the_other_checkpoint_and_one_that_takes_an_agent_the_agent(
    case: Case,
) -> None:
    onto = newer()
    put(case, onto)
    rules = [{"tensors": NORM, "take": "base"}, {"tensors": MLP, "take": "code"}]
    found = merged(case, rules=rules)
    assert_same_bits(found[NORM], onto[NORM], NORM)
    assert_same_bits(found[MLP], trained(model(), 1)[MLP], MLP)


def test_integer_buffers_are_those_of_the_other_checkpoint(case: Case) -> None:
    name, base = "model.position_ids", model()
    put(case, newer() | {name: np.arange(5)})
    for source in ("base", "code", "tool"):
        case.put(source, (base if source == "base" else trained(base, len(source))) | {name: np.zeros(5, np.int64)})
    assert merged(case)[name].tolist() == [0, 1, 2, 3, 4]


def test_masks_of_minus_infinity_stay_those_of_the_other_checkpoint(case: Case) -> None:
    mask = np.array([1, -np.inf, 2, -np.inf] * 3, np.float32).astype(BF16)
    base = model() | {NORM: mask}
    put(case, newer() | {NORM: mask * BF16.type(2)})
    for source, seed in (("base", 0), ("code", 1), ("tool", 2)):
        case.put(source, (trained(base, seed) if seed else base) | {NORM: mask})
    found = merged(case)[NORM].astype(np.float32)
    assert found.tolist() == (mask * BF16.type(2)).astype(np.float32).tolist()


def test_nan_in_the_other_checkpoint_is_told_as_its_own(case: Case) -> None:
    onto = newer()
    onto[MLP][0, 0] = np.nan
    put(case, onto)
    case.refused(f"{MLP}: onto ({case.folder / 'other'}) has 1 NaN", onto=str(case.folder / "other"))


@pytest.mark.parametrize(
    ("change", "parts"),
    [
        ({NORM: None}, ("onto has not all of the base's tensors", NORM)),
        ({"model.more.weight": np.zeros(3, np.float32)}, ("onto has tensors that the base lacks", "more")),
        ({EMBED: np.zeros((20, 12), BF16)}, ("onto has shape [20, 12], base has [16, 12]",)),
    ],
)
@pytest.mark.parametrize("allowed", [{}, {"missing": "base", "extra": "ignore", "vocab": "base-rows"}])
def test_another_checkpoint_of_other_tensors_is_refused_whatever_agents_may_do(
    case: Case, change: dict[str, Any], parts: tuple[str, ...], allowed: dict[str, str]
) -> None:
    put(case, {name: array for name, array in (newer() | change).items() if array is not None})
    case.refused_early(*parts, onto=str(case.folder / "other"), inputs=allowed)


@pytest.mark.parametrize("tied", ["base", "other"])
def test_a_head_that_only_one_of_the_two_ties_is_refused_and_untie_merges_it(case: Case, tied: str) -> None:
    put(case, newer())
    tensors = model(0 if tied == "base" else 9)
    del tensors[HEAD]
    case.put(tied, tensors, config={"tie_word_embeddings": True})
    case.agents.pop("other", None)
    case.refused_early("lm_head.weight: onto", "--untie", onto=str(case.folder / "other"))
    if tied == "other":
        assert HEAD in merged(case, inputs={"untie": True})
        assert case.config["tie_word_embeddings"] is False


@pytest.mark.parametrize("twice", ["base", "code"])
def test_the_other_checkpoint_is_neither_the_base_nor_an_agent(case: Case, twice: str) -> None:
    put(case, newer())
    case.refused_early("are the same files", onto=str(case.folder / twice))


def test_another_order_of_tokens_in_the_other_checkpoint_is_refused(case: Case) -> None:
    put(case, newer(), **tokenizer(words(12)[::-1]))
    for source, seed in (("base", 0), ("code", 1), ("tool", 2)):
        case.put(source, trained(model(), seed) if seed else model(), **tokenizer(words(12)))
    case.refused_early("tokens under other ids", onto=str(case.folder / "other"))


def test_the_output_never_replaces_the_other_checkpoint(case: Case) -> None:
    put(case, newer())
    with pytest.raises(agentmerge.MergeError, match="onto"):
        agentmerge.merge(case.recipe(onto=str(case.folder / "other")), case.folder / "other", overwrite=True)


def test_a_killed_merge_goes_on_with_the_same_other_checkpoint_and_begins_anew_with_another(case: Case) -> None:
    put(case, newer())
    recipe = case.recipe("ram+", onto=str(case.folder / "other"), run={"workers": 1, "block_size": 4096})
    agentmerge.merge(recipe, case.folder / "whole")
    with pytest.raises(Killed):
        agentmerge.merge(recipe, case.out, watch=KillInMap(2))
    agentmerge.merge(recipe, case.out)
    for name, array in case.result.items():
        assert_same_bits(array, read_checkpoint(case.folder / "whole")[name], name)


def test_a_killed_merge_does_not_go_on_with_another_checkpoint(case: Case) -> None:
    put(case, newer())
    recipe = case.recipe("ram+", onto=str(case.folder / "other"), run={"workers": 1, "block_size": 4096})
    with pytest.raises(Killed):
        agentmerge.merge(recipe, case.out, watch=KillInMap(2))
    case.put("other", newer(seed=10))
    with pytest.raises(agentmerge.MergeError, match=r"onto|sources"):
        agentmerge.merge(recipe, case.out)


def test_a_saved_survey_of_the_agents_serves_any_other_checkpoint(case: Case) -> None:
    put(case, newer())
    saved = case.folder / "survey.json"
    agentmerge.probe(case.recipe("ram+")).save(saved)
    onto = str(case.folder / "other")
    record = case.merge("ram+", onto=onto, run={"survey": str(saved)})
    assert record.timing.folds == 0
    assert record.survey == case.merge("ram+", onto=onto).survey


def test_a_sweep_puts_every_merge_onto_the_same_checkpoint(case: Case) -> None:
    put(case, newer())
    recipe = case.recipe("ram+", onto=str(case.folder / "other"))
    agentmerge.sweep(recipe, "rescale", [0.0, 0.5], case.folder / "swept")
    for value in (0.0, 0.5):
        case.merge({"name": "ram+", "rescale": value}, onto=str(case.folder / "other"))
        for name, array in read_checkpoint(case.folder / "swept" / f"rescale={value}").items():
            assert_same_bits(array, case.result[name], name)


def test_a_report_counts_what_the_other_checkpoint_keeps(case: Case) -> None:
    put(case, newer("F32"))
    record = agentmerge.merge(case.recipe(onto=str(case.folder / "other")), case.out, full=True)
    assert record.retention is not None
    for agent in record.retention.values():
        assert agent.unique == pytest.approx(1, abs=1e-4)
    assert {name: a.changed_lost for name, a in record.rounding.items()} == {"code": 0, "tool": 0}


def test_a_dry_run_names_the_other_checkpoint_and_its_bytes(case: Case, capsys: pytest.CaptureFixture[str]) -> None:
    from agentmerge.cli import app  # late: the command line takes a while

    put(case, newer())
    agents = [word for name, path in case.agents.items() for word in ("--agent", f"{name}={path}")]
    command = ["merge", "--base", str(case.folder / "base"), *agents, "--out", str(case.out), "--dry-run", "--json"]
    found = []
    for more in ([], ["--onto", str(case.folder / "other")]):
        app([*command, *more], standalone_mode=False)
        found.append(json.loads(capsys.readouterr().out))
    assert found[1]["onto"] == str(case.folder / "other")
    assert found[1]["read_bytes"] > found[0]["read_bytes"]
    assert found[1]["memory_bytes"] > found[0]["memory_bytes"]


def test_a_check_tells_what_is_wrong_with_the_other_checkpoint_as_its_own(case: Case) -> None:
    put(case, newer(), config=INSTRUCT | {"rope_theta": 5.0})
    (error,) = [f for f in case.check(onto=str(case.folder / "other")).findings if f.severity == "error"]
    assert error.where == "onto"
    assert error.found.startswith("onto has rope")


def test_a_patch_of_such_a_merge_lies_over_the_other_checkpoint(case: Case) -> None:
    from agentmerge.cli import app  # late: the command line takes a while

    put(case, newer())
    agents = [word for name, path in case.agents.items() for word in ("--agent", f"{name}={path}")]
    base, other, patch = (str(case.folder / name) for name in ("base", "other", "patch.safetensors"))
    words = ["merge", "--base", base, *agents, "--onto", other, "--method", "ram", "--patch", patch, "--quiet"]
    app(words, standalone_mode=False)
    agentmerge.apply(other, patch, case.folder / "applied")
    expected = merged(case)
    for name, array in read_checkpoint(case.folder / "applied").items():
        assert_same_bits(array, expected[name], name)


def test_an_agent_called_onto_and_new_rows_are_refused_by_the_recipe(case: Case) -> None:
    put(case, newer())
    with pytest.raises(RecipeError, match="onto"):
        agentmerge.Recipe.parse(case.recipe(onto="x", inputs={"vocab": "union"}))
    with pytest.raises(RecipeError, match=r"agents\.onto"):
        agentmerge.Recipe.parse({**case.recipe(onto="x"), "agents": {"onto": "a"}})
    assert "onto" not in CONFIG
    assert DTYPES["BF16"] == BF16
