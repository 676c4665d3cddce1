"""What harm an agent does equals its definition, is put down to where it is, and goes with the advice. Needs torch."""

import json
import shutil
from pathlib import Path

import numpy as np
import pytest

import agentmerge
from agentmerge.demo.shipped import NAMES, folder
from agentmerge.errors import DataError, SourceError
from agentmerge.eval.tiny.tasks import SUB_TASKS
from agentmerge.files.save import save
from agentmerge.harm.options import HarmOptions
from agentmerge.harm.places import place_of
from agentmerge.harm.reading import Between, counted, drop_of
from agentmerge.harm.remedies import applied
from agentmerge.harm.run import measure_harm
from agentmerge.importance.tokens import TokenSequence
from agentmerge.recipe import Recipe
from agentmerge.testing import read_checkpoint
from tests.slow.models import EXAMPLES, KINDS, ids, make_model

pytestmark = [pytest.mark.slow, pytest.mark.filterwarnings("default")]
SEQUENCES = [TokenSequence(tuple(t[:n]), tuple(t[n:]), i, False) for i, (t, n) in enumerate(map(ids, EXAMPLES))]
TINY = Path(__file__).parents[2] / "experiments" / "tiny_agents"
BROKEN = "model.layers.0.mlp."


def changed(base, out, by, where=""):
    """The base with noise in some tensors, beside a copy of all other files."""
    random, tensors = np.random.default_rng(1), read_checkpoint(base)
    shutil.copytree(base, out, ignore=shutil.ignore_patterns("*.safetensors"))
    noise = {n: (t + by * random.standard_normal(t.shape)).astype(t.dtype) for n, t in tensors.items() if where in n}
    save(out, {**tensors, **noise})
    return out


@pytest.fixture(autouse=True, scope="module")
def _one_thread():
    """Small models are quicker with one."""
    torch = pytest.importorskip("torch")
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.fixture(params=KINDS)
def pair(request, tmp_path):
    """The model of a base, that base's folder and a changed agent's."""
    folder = tmp_path / request.param
    folder.mkdir()
    base = make_model(folder / "base", request.param)
    agent = changed(base, folder / "agent", 0.01)
    from agentmerge.harm.model import Model

    return Model(base, "cpu", "float32", 64), base, agent


def likelihoods(source, sequences):
    """By the book: one example at a time, nothing padded."""
    import torch
    import transformers

    model = transformers.AutoModelForCausalLM.from_pretrained(source).eval()
    found = []
    for one in sequences:
        with torch.no_grad():
            logits = torch.log_softmax(model(torch.tensor([[*one.prompt, *one.response]])).logits[0], -1)
        at = range(len(one.prompt) - 1, one.tokens - 1)
        found.append(sum(float(logits[i, token]) for i, token in zip(at, one.response, strict=True)))
    return found


def test_what_is_read_equals_the_definition_padded_or_not(pair):
    model, base, agent = pair
    for what, source in ((Between(), base), (Between(model.weights(agent)), agent)):
        model.become(what)
        np.testing.assert_allclose(model.read(SEQUENCES).likelihood, likelihoods(source, SEQUENCES), rtol=1e-5)


def test_a_trace_adds_up_to_the_drop_and_leaves_the_model_as_it_found_it(pair):
    model, base, agent = pair
    weights, before = model.weights(agent), model.read(SEQUENCES)
    shares = model.trace(weights, SEQUENCES)
    model.become(Between(weights))
    drop = drop_of(before, model.read(SEQUENCES), SEQUENCES).mean
    if "experts" not in base.parent.name:  # where other experts are chosen on the way, the likelihood jumps
        assert sum(shares.values()) == pytest.approx(drop, rel=0.02, abs=1e-4)
    assert shares.keys() == weights.keys()
    model.become(Between())
    np.testing.assert_array_equal(model.read(SEQUENCES).likelihood, before.likelihood)


def test_what_is_skipped_or_has_no_weight_is_the_base(pair):
    model, _, agent = pair
    weights, before = model.weights(agent), model.read(SEQUENCES)
    for what in (Between(weights, weight=0.0), Between(weights, skipped=frozenset(weights))):
        model.become(what)
        np.testing.assert_array_equal(model.read(SEQUENCES).likelihood, before.likelihood)
    model.become(Between(weights, skipped=frozenset(name for name in weights if "mlp" in name)))
    assert not np.allclose(model.read(SEQUENCES).likelihood, before.likelihood)


def test_every_parameter_has_a_place_that_the_files_know(pair):
    model, base, _ = pair
    stored = {place_of(name) for name in read_checkpoint(base)}
    assert {place_of(name) for name in model.stored.values()} <= stored


@pytest.fixture(scope="module")
def prompts(tmp_path_factory):
    path = tmp_path_factory.mktemp("harm") / "prompts.jsonl"
    drawn = [(task.domain, one.prompt) for task in SUB_TASKS for one in task.samples("dev", 12, seed=3)]
    path.write_text("".join(json.dumps({"prompt": text, "skill": skill}) + "\n" for skill, text in drawn))
    return path


@pytest.fixture(scope="module")
def sources(tmp_path_factory):
    """The shipped agents, of which code is trained again, at a rate that breaks what the base could do."""
    broken = tmp_path_factory.mktemp("broken") / "code"
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(TINY)
        from settings import SupervisedSettings
        from supervise import train_supervised

        train_supervised(folder("base"), broken, SupervisedSettings("code", 1e-3, 40, 16), seed=1)
    return {"base": str(folder("base")), "agents": {n: str(broken if n == "code" else folder(n)) for n in NAMES}}


@pytest.fixture(scope="module")
def record(sources, prompts):
    return measure_harm({**sources, "method": "ram"}, prompts, HarmOptions(device="cpu"))


def test_the_broken_agent_is_named_and_no_other(record):
    assert record.harmful == ["code"]
    assert [one.rows for one in record.verdict if one.rule == "broke"] == [["code"]]
    assert not any(row.harmed for row in record.rows if row.own)


def test_the_damage_is_put_down_to_places_that_add_up_to_it(record):
    harmed = [row.drop for row in record.rows if row.harmed]
    assert sum(row.drop for row in record.places) == pytest.approx(np.mean(harmed), rel=0.1)
    assert sum(row.energy for row in record.places) == pytest.approx(1)
    assert {row.glob for row in record.places} >= {"*layers.0.mlp.*", "*layers.3.self_attn.*", "model.embed_tokens*"}


def test_the_damage_of_one_place_is_put_down_to_it(tmp_path, prompts):
    broken = changed(folder("code"), tmp_path / "code", 0.1, BROKEN)
    recipe = {"base": str(folder("base")), "agents": {"x": str(broken)}, "method": "ram"}
    found = measure_harm(recipe, prompts, HarmOptions(device="cpu", examples=8))
    *others, worst = sorted(found.places, key=lambda row: row.drop)
    assert worst.place == "layer 0 mlp"
    assert sum(abs(row.drop) for row in others) < 0.1 * worst.drop


def test_the_advice_takes_the_damage_out_of_the_merge(record, sources, prompts, tmp_path):
    assert "rules" in record.change
    recipe = Recipe.parse({**sources, "method": {"name": "task_arithmetic", "scale": 1.0}})
    for name, made in (("plain", recipe), ("advised", applied(recipe, record.change))):
        agentmerge.merge(made, tmp_path / name)
    merged = {"base": sources["base"], "agents": {n: str(tmp_path / n) for n in ("plain", "advised")}, "method": "ram"}
    found = measure_harm(merged, prompts, HarmOptions(device="cpu"), own={"plain": ["code"], "advised": ["code"]})
    drops = {name: sum(row.drop for row in found.rows if row.agent == name and not row.own) for name in found.agents}
    assert drops["advised"] < drops["plain"] / 2
    assert "plain" in found.harmful


def test_numbers_that_are_none_are_told_with_their_agent(sources, prompts, tmp_path):
    bad = changed(folder("code"), tmp_path / "bad", np.nan, BROKEN)
    recipe = {**sources, "agents": {"bad": str(bad)}, "method": "ram"}
    with pytest.raises(DataError, match=r"agent 'bad': .*not finite"):
        measure_harm(recipe, prompts, HarmOptions(device="cpu"))


def test_a_base_without_tokenizer_is_told(sources, prompts, tmp_path):
    shutil.copytree(folder("base"), tmp_path / "base", ignore=shutil.ignore_patterns("token*"))
    with pytest.raises(SourceError, match="no tokenizer"):
        measure_harm({**sources, "base": str(tmp_path / "base"), "method": "ram"}, prompts, HarmOptions(device="cpu"))


def test_answers_that_the_base_would_not_give_are_noted(sources, tmp_path):
    path = tmp_path / "prompts.jsonl"
    path.write_text("".join(json.dumps({"prompt": f"4+{i}", "response": "zzzzzz"}) + "\n" for i in range(3)))
    found = measure_harm({**sources, "method": "ram"}, path, HarmOptions(device="cpu"))
    assert ["fewer than" in found.warnings[0], "hardly gives" in found.warnings[1]] == [True, True]
    assert counted([TokenSequence((1,), (2,), 1, False)]) == [1.0]
