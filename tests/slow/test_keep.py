"""From prompts of what the base can do to a merge that keeps it: measured, merged and scored on the shipped agents."""

import json

import pytest

from agentmerge.api import merge
from agentmerge.demo.shipped import folder
from agentmerge.eval.generate import LanguageModel
from agentmerge.eval.score import score
from agentmerge.eval.tiny.tasks import SUB_TASKS
from agentmerge.importance.grams import GramOptions, measure_grams
from agentmerge.importance.tokens import TokenSequence
from agentmerge.testing import read_checkpoint
from tests.slow.models import EXAMPLES, make_model
from tests.slow.test_grams import by_hooks

pytestmark = [pytest.mark.slow, pytest.mark.filterwarnings("default")]
PROMPTS = [one for one in EXAMPLES if isinstance(one["prompt"], str)]


def write(path, lines):
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    return path


def options(**settings):
    return GramOptions(device="cpu", dtype="float32", **settings)


def test_prompts_need_no_answers_and_skills_are_taken_in_turn(tmp_path):
    model = make_model(tmp_path / "model")
    bare = [{"prompt": one["prompt"], "skill": "ab"[i > 0]} for i, one in enumerate(PROMPTS)]
    record = measure_grams(model, write(tmp_path / "bare.jsonl", bare), tmp_path / "out", options(examples=2))
    first = [{"prompt": PROMPTS[i]["prompt"], "response": ""} for i in (0, 1)]
    expected, found = by_hooks(model, first), read_checkpoint(tmp_path / "out")
    assert (record.data.examples, record.data.response_tokens) == (2, 0)
    for gram in record.grams:
        assert abs(found[gram.name] - expected[gram.name]).max() <= 1e-6 * abs(expected[gram.name]).max()


def test_per_example_a_long_one_counts_no_more_than_a_short_one(tmp_path):
    model = make_model(tmp_path / "model")
    lines = [{"prompt": one["prompt"]} for one in PROMPTS]
    record = measure_grams(model, write(tmp_path / "all.jsonl", lines), tmp_path / "out", options(per="example"))
    assert (record.per, record.formula[:21]) == ("example", "G = mean over example")
    each = [by_hooks(model, [{**line, "response": ""}]) for line in lines]
    for name, array in read_checkpoint(tmp_path / "out").items():
        expected = sum(found[name] for found in each) / len(each)
        assert abs(array - expected).max() <= 1e-6 * abs(expected).max(), name


def test_per_example_a_layer_that_is_given_some_tokens_counts_them_as_a_share_of_all(monkeypatch):
    """As experts are, each of the tokens that are sent to it, and maybe of none; or a layer that is called twice."""
    torch = pytest.importorskip("torch")
    from agentmerge.importance import inputs

    class Routed(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.embedding, self.some, self.none, self.twice = torch.nn.Embedding(9, 4), *map(linear, range(3))

        def forward(self, input_ids, use_cache):
            rows = self.embedding(input_ids)[0]
            self.some(rows[:2]), self.none(rows[:0]), self.twice(rows[:1]), self.twice(rows[1:])

    def linear(_):
        return torch.nn.Linear(4, 4)

    model = Routed()
    monkeypatch.setattr(inputs, "load_model", lambda folder, dtype: model)
    found = inputs.Inputs("nowhere", "cpu", "float32", "float64", "example")
    layers = [inputs.Layer((name,), (name,), 4) for name in ("some", "none", "twice")]
    found.begin(layers)
    each = (1, 2, 3), (4, 5, 6, 7, 8)
    for line, tokens in enumerate(each):
        found.observe(layers, TokenSequence(tokens, (), line, False))
    rows = [model.embedding.weight.detach()[list(tokens)].double() for tokens in each]
    expected = {
        "some": sum(one[:2].T @ one[:2] / len(one) for one in rows),
        "none": torch.zeros(4, 4),
        "twice": sum(one.T @ one / len(one) for one in rows),
    }
    for name, total in found.sums():
        assert abs(total - expected[name].numpy()).max() < 1e-12, name


def test_where_some_have_no_answer_that_is_told(tmp_path):
    model = make_model(tmp_path / "model")
    lines = [{"prompt": one["prompt"]} for one in PROMPTS]
    data = write(tmp_path / "all.jsonl", [lines[0], *PROMPTS[1:]])
    told = measure_grams(model, data, tmp_path / "out", options()).warnings
    assert any(f"1 of {len(PROMPTS)} examples have no response" in note for note in told)
    record = measure_grams(model, write(data, lines), tmp_path / "bare", options())
    assert not any("no response" in note for note in record.warnings)


def test_what_the_base_can_do_is_kept_where_a_merge_would_lose_it(tmp_path):
    """Memory and tool merged by wudi_auto: the base's math falls by ten points, with `keep` by three."""
    lines = [
        {"prompt": one.prompt, "skill": task.domain} for task in SUB_TASKS for one in task.samples("dev", 32, seed=3)
    ]
    prompts = write(tmp_path / "prompts.jsonl", lines)
    measure_grams(folder("base"), prompts, tmp_path / "keep", options())
    recipe = {
        "base": str(folder("base")),
        "agents": {name: str(folder(name)) for name in ("memory", "tool")},
        "method": {"name": "wudi_auto", "keep": 1.0},
        "output": {"rounding": "stochastic"},
    }
    merge({**recipe, "method": "wudi_auto"}, tmp_path / "plain")
    merge({**recipe, "keep": str(tmp_path / "keep")}, tmp_path / "kept")
    base, plain, kept = (scores(path) for path in (folder("base"), tmp_path / "plain", tmp_path / "kept"))
    assert plain["math"] < base["math"] - 0.06
    assert kept["math"] > plain["math"] + 0.04
    assert kept["code"] > plain["code"] + 0.02
    assert all(kept[name] > plain[name] - 0.03 for name in ("memory", "tool"))


def scores(checkpoint):
    """Share of right answers by domain, on test prompts."""
    found = score(LanguageModel.load(checkpoint, threads=2), SUB_TASKS, "test", 128)
    domains = dict.fromkeys(task.domain for task in SUB_TASKS)
    return {name: found.mean([task for task in SUB_TASKS if task.domain == name]) for name in domains}
