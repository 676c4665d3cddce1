"""From the words of a command to suites and who answers."""

from __future__ import annotations

import pytest

from agentmerge.errors import EvalError
from agentmerge.eval.options import Options, make_generator, make_jobs
from agentmerge.eval.suite import Given


def test_settings_are_read_as_their_fields_want_them():
    (job,) = make_jobs(
        "jsonl", "paper", ["jsonl.samples=3", "jsonl.top_k=null", "jsonl.stop=a,b", "jsonl.chat=false"], Given(), 5
    )
    settings = job.suite.settings
    assert (settings.samples, settings.top_k, settings.stop, settings.chat) == (3, None, ("a", "b"), False)
    assert job.limit == 5
    (job,) = make_jobs("jsonl", "paper", ['jsonl.stop=["a,b", "\\n"]'], Given())
    assert job.suite.settings.stop == ("a,b", "\n")


@pytest.mark.parametrize(
    ("suites", "preset", "settings", "said"),
    [
        ("", "paper", [], "--suites: names none"),
        ("tinny", "paper", [], "no suite 'tinny'. Did you mean 'tiny'?"),
        ("tiny,tiny", "paper", [], "a suite stands twice"),
        ("tiny", "cure", [], "tiny: no preset 'cure'"),
        ("tiny", "jsonl=paper", [], "'jsonl' is not among the suites"),
        ("tiny", "paper", ["count=3"], "--set count=3, expected SUITE.FIELD=VALUE"),
        ("tiny", "paper", ["jsonl.samples=3"], "'jsonl' is not among the suites"),
        ("tiny", "paper", ["tiny.count=x"], "tiny.count: "),
        ("tiny", "paper", ["tiny.counts=3"], "Did you mean 'count'?"),
        ("jsonl", "paper", ["jsonl.stop=[1"], "expected a JSON list"),
    ],
)
def test_what_cannot_be_is_told(suites, preset, settings, said):
    with pytest.raises(EvalError) as caught:
        make_jobs(suites, preset, settings, Given())
    assert said in str(caught.value)


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({}, "nowhere: no such folder"),
        ({"generator": "openai"}, "no server is given"),
        ({"generator": "hf", "server": "http://a"}, "--server is of no use"),
        ({"generator": "vlm"}, "Did you mean 'vllm'?"),
        ({"too_long": "maybe"}, "expected stop or empty"),
        ({"server_fields": "[]"}, "expected a JSON object"),
        ({"concurrency": 0}, "concurrency"),
    ],
)
def test_who_cannot_answer_is_told(given, said):
    with pytest.raises(EvalError) as caught:
        make_generator("nowhere", Options.of(**given))
    assert said in str(caught.value)


@pytest.mark.parametrize("kind", ["vllm", "sglang"])
def test_an_engine_that_is_not_installed_is_told_at_the_first_request(kind, tmp_path, monkeypatch):
    monkeypatch.setattr("agentmerge.eval.generators.offline.find_spec", lambda name: None)
    generator = make_generator(str(tmp_path), Options.of(generator=kind))
    with pytest.raises(EvalError, match=f"{kind} is not installed"):
        _ = generator.engine


def test_a_plan_counts_by_the_models_tokenizer_where_there_is_one(tmp_path):
    tokenizers = pytest.importorskip("tokenizers", reason="it comes with the extra eval")
    from agentmerge.eval.plan import plan_all

    words = tokenizers.Tokenizer(tokenizers.models.WordLevel({"[U]": 0}, "[U]"))
    words.pre_tokenizer = tokenizers.pre_tokenizers.WhitespaceSplit()
    words.save(str(tmp_path / "tokenizer.json"))
    (tmp_path / "p.jsonl").write_text('{"prompt": "one two three", "answer": ""}\n' * 2)
    jobs = make_jobs("jsonl", "paper", [f"jsonl.file={tmp_path}/p.jsonl", "jsonl.samples=2"], Given())
    counted, guessed = plan_all(jobs, str(tmp_path))["jsonl"], plan_all(jobs, None)["jsonl"]
    assert (counted.requests, counted.prompt_tokens, counted.counted) == (2, 6, True)
    assert (guessed.prompt_tokens, guessed.counted) == (2 * 13 // 4, False)
