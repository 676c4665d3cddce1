"""`agentmerge importance`: what is wrong is told in one message, with exit code 2, before torch is needed."""

import json
import sys
from types import SimpleNamespace

import pytest

import agentmerge.importance
from agentmerge.cli.importance import summary
from agentmerge.importance.prepare import Options
from agentmerge.importance.record import DataFacts, ImportanceRecord, ModelFacts, Settings, TensorFacts


@pytest.fixture
def data(tmp_path):
    path = tmp_path / "data.jsonl"
    path.write_text(json.dumps({"prompt": "a", "response": "b"}) + "\n")
    return path


@pytest.fixture
def record():
    return ImportanceRecord(
        model=ModelFacts(source="code", files=[]),
        data=DataFacts(
            path="data.jsonl", sha256="0", wanted=4, examples=3, prompt_tokens=9, response_tokens=1234, cut=0, skipped=0
        ),
        settings=Settings(max_length=9, chat=False, device="cpu", dtype="float32"),
        tensors=TensorFacts(written=5, zero=[], tied={}, not_float=[]),
        log_likelihood=-0.25,
        versions={},
        warnings=[],
    )


def test_it_has_help(run):
    ran = run("importance", "--help")
    assert (ran.code, "--max-length" in ran.out) == (0, True)


@pytest.mark.parametrize(
    ("options", "told"),
    [
        (["--examples", "0"], "importance: examples"),
        (["--max-length", "1"], "importance: max_length"),
        (["--every", "-1"], "importance: every"),
        (["--examples", "many"], "--examples"),
    ],
)
def test_settings_out_of_range_are_told(run, agents, data, tmp_path, options, told):
    ran = run("importance", str(agents / "code"), "--data", str(data), "--out", str(tmp_path / "out"), *options)
    assert ran.code == 2
    assert told in ran.err


def test_a_model_or_data_that_are_not_there_are_told(run, agents, data, tmp_path):
    out = ["--out", str(tmp_path / "out")]
    ran = run("importance", str(tmp_path / "none"), "--data", str(data), *out)
    assert (ran.code, "no such folder" in ran.err) == (2, True)
    ran = run("importance", str(agents / "code"), "--data", str(tmp_path / "none"), *out)
    assert (ran.code, "no such data file" in ran.err) == (2, True)
    assert run("importance", str(agents / "code"), *out).code == 2


def test_a_bad_line_is_told_by_file_and_line(run, agents, data, tmp_path):
    with data.open("a") as file:
        file.write('{"prompt": "a"}\n')
    ran = run("importance", str(agents / "code"), "--data", str(data), "--out", str(tmp_path / "out"))
    assert ran.code == 2
    assert f"{data}:2: no response" in ran.err


def test_an_output_that_is_taken_is_told(run, agents, data, tmp_path):
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / "x").touch()
    ran = run("importance", str(agents / "code"), "--data", str(data), "--out", str(tmp_path / "out"))
    assert (ran.code, "is not empty" in ran.err) == (2, True)
    ran = run("importance", str(agents / "code"), "--data", str(data), "--out", str(agents / "code" / "importance"))
    assert (ran.code, "lies in, or holds, the model" in ran.err) == (2, True)


def test_a_file_a_quantised_model_and_one_without_config_are_told(run, agents, data, tmp_path):
    rest = ["--data", str(data), "--out", str(tmp_path / "out")]
    ran = run("importance", str(agents / "code" / "model.safetensors"), *rest)
    assert (ran.code, "expected the model's folder" in ran.err) == (2, True)
    folder = tmp_path / "model"
    folder.mkdir()
    (folder / "model.safetensors").write_bytes((agents / "code" / "model.safetensors").read_bytes())
    assert "no config.json" in run("importance", str(folder), *rest).err
    (folder / "config.json").write_text('{"quantization_config": {}}')
    ran = run("importance", str(folder), *rest)
    assert (ran.code, "is quantised" in ran.err) == (2, True)


@pytest.mark.parametrize("name", ["torch", "transformers"])
def test_without_its_extra_it_says_what_to_install(run, agents, data, tmp_path, monkeypatch, name):
    monkeypatch.delitem(sys.modules, "agentmerge.importance.fisher", raising=False)
    monkeypatch.delattr(agentmerge.importance, "fisher", raising=False)
    monkeypatch.setattr(sys, "meta_path", [Missing(name), *sys.meta_path])
    for module in [word for word in sys.modules if word.split(".")[0] == name]:
        monkeypatch.delitem(sys.modules, module)
    ran = run("importance", str(agents / "code"), "--data", str(data), "--out", str(tmp_path / "out"))
    assert ran.code == 2
    assert "pip install 'agentmerge[importance]'" in ran.err
    assert not (tmp_path / "out").exists()


def test_a_folder_without_a_tokenizer_is_told_not_the_lines(run, agents, data, tmp_path, monkeypatch):
    torch = SimpleNamespace(DEVICES=("cpu",), DTYPES=("float32",), choose_device=lambda _: "cpu")
    monkeypatch.setattr("agentmerge.importance.prepare.torch_file", lambda _: torch)
    ran = run("importance", str(agents / "code"), "--data", str(data), "--out", str(tmp_path / "out"))
    assert (ran.code, f"{agents / 'code'}: the folder has no tokenizer" in ran.err) == (2, True)
    assert "Remove the line" not in ran.err


@pytest.mark.parametrize(("given", "read"), [("bf16", "bfloat16"), ("fp64", "float64"), ("half", "float16")])
def test_a_dtype_may_be_spelled_as_people_do(given, read):
    assert Options.of(dtype=given).dtype == read


class Missing:
    """As if a package were not installed."""

    def __init__(self, name):
        self.name = name

    def find_spec(self, name, path=None, target=None):
        if name.split(".")[0] == self.name:
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)


def test_the_summary_says_how_to_go_on(record, tmp_path):
    text = summary(record, tmp_path)
    assert "5 tensors, from 3 examples with 1,234 response tokens" in text
    assert f"agents: {{code: {{source: code, importance: {tmp_path}}}}}" in text


def test_the_record_reads_back(record, tmp_path):
    (tmp_path / "importance.json").write_bytes(record.dump())
    assert ImportanceRecord.load(tmp_path) == record
