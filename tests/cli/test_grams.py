"""`agentmerge grams`: what is wrong is told in one message, with exit code 2, before torch is needed."""

import json
import sys

import pytest

import agentmerge.importance
from agentmerge.cli.grams import summary
from agentmerge.importance.grams import GramOptions
from agentmerge.importance.record import DataFacts, GramFacts, GramRecord, ModelFacts, Settings


@pytest.fixture
def data(tmp_path):
    path = tmp_path / "data.jsonl"
    path.write_text(json.dumps({"prompt": "a", "response": "b"}) + "\n")
    return path


@pytest.fixture
def record():
    facts = {"wanted": 4, "examples": 3, "prompt_tokens": 9, "response_tokens": 1234, "cut": 0, "skipped": 0}
    return GramRecord(
        model=ModelFacts(source="code", files=[]),
        data=DataFacts(path="data.jsonl", sha256="0", **facts),
        settings=Settings(max_length=9, chat=False, device="cpu", dtype="float32"),
        stored="float64",
        tokens=1243,
        grams=[GramFacts(name="q", inputs=8, shared=["k", "v"]), GramFacts(name="o", inputs=8, shared=[])],
        left_out=[],
        versions={},
        warnings=[],
    )


def test_it_has_help(run):
    ran = run("grams", "--help")
    assert (ran.code, "--memory" in ran.out, "--stored" in ran.out) == (0, True, True)


@pytest.mark.parametrize(
    ("options", "told"),
    [
        (["--examples", "0"], "grams: examples"),
        (["--memory", "0"], "grams: memory"),
        (["--stored", "bfloat16"], "stored"),
    ],
)
def test_settings_out_of_range_are_told(run, agents, data, tmp_path, options, told):
    ran = run("grams", str(agents / "code"), "--data", str(data), "--out", str(tmp_path / "out"), *options)
    assert ran.code == 2
    assert told in ran.err


def test_a_bad_line_and_an_output_that_is_taken_are_told(run, agents, data, tmp_path):
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / "x").touch()
    ran = run("grams", str(agents / "code"), "--data", str(data), "--out", str(tmp_path / "out"))
    assert (ran.code, "is not empty" in ran.err) == (2, True)
    with data.open("a") as file:
        file.write('{"response": "a"}\n')
    ran = run("grams", str(agents / "code"), "--data", str(data), "--out", str(tmp_path / "new"))
    assert (ran.code, f"{data}:2: no prompt" in ran.err) == (2, True)


def test_without_its_extra_it_says_what_to_install(run, agents, data, tmp_path, monkeypatch):
    for name in ("inputs", "fisher"):
        monkeypatch.delitem(sys.modules, f"agentmerge.importance.{name}", raising=False)
        monkeypatch.delattr(agentmerge.importance, name, raising=False)
    monkeypatch.setattr(sys, "meta_path", [WithoutTorch(), *sys.meta_path])
    for module in [word for word in sys.modules if word.split(".")[0] == "torch"]:
        monkeypatch.delitem(sys.modules, module)
    ran = run("grams", str(agents / "code"), "--data", str(data), "--out", str(tmp_path / "out"))
    assert ran.code == 2
    assert "`agentmerge grams` needs torch" in ran.err
    assert "pip install 'agentmerge[importance]'" in ran.err


class WithoutTorch:
    """As if torch were not installed."""

    def find_spec(self, name, path=None, target=None):
        if name.split(".")[0] == "torch":
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)


def test_a_dtype_may_be_spelled_as_people_do():
    assert GramOptions.of(stored="fp32").stored == "float32"


def test_the_summary_says_how_to_go_on_and_the_record_reads_back(record, tmp_path):
    text = summary(record, tmp_path)
    assert "2 Gram matrices for 4 layers, from 3 examples with 1,243 tokens" in text
    assert f"agents: {{code: {{source: code, grams: {tmp_path}}}}}" in text
    assert f"  keep: {tmp_path} " in text
    bare = record.model_copy(update={"data": record.data.model_copy(update={"response_tokens": 0})})
    text = summary(bare, tmp_path)
    assert ("from 3 prompts with" in text, f"  keep: {tmp_path} " in text, "agents:" in text) == (True, True, False)
    (tmp_path / "grams.json").write_bytes(record.dump())
    assert GramRecord.load(tmp_path) == record
