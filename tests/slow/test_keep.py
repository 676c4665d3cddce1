"""From prompts of what the base can do to a merge that keeps it: measured, merged and scored on the shipped agents."""

import json

import pytest

from agentmerge.api import merge
from agentmerge.demo.shipped import folder
from agentmerge.eval.generate import LanguageModel
from agentmerge.eval.score import score
from agentmerge.eval.tiny.tasks import SUB_TASKS
from agentmerge.importance.grams import GramOptions, measure_grams
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
    assert record.per == "example"
    each = [by_hooks(model, [{**line, "response": ""}]) for line in lines]
    for name, array in read_checkpoint(tmp_path / "out").items():
        expected = sum(found[name] for found in each) / len(each)
        assert abs(array - expected).max() <= 1e-6 * abs(expected).max(), name


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
