"""A synthetic set on disk: opens everywhere, depends on the seed alone, appears whole or not at all."""

from __future__ import annotations

import json
import shutil

import numpy as np
import pytest
from safetensors import safe_open

from agentmerge.errors import OutputError, RecipeError
from agentmerge.synth import numbers, write
from agentmerge.synth.numbers import base_numbers
from agentmerge.synth.shapes import SHAPES
from agentmerge.synth.write import synthesise

SHARD = 1_000_000  # bytes; divides tiny into several files


def raw_tensors(folder):
    """Every tensor's bytes by name, read by hand so that bf16 needs no torch."""
    tensors = {}
    for path in sorted(folder.glob("*.safetensors")):
        data = path.read_bytes()
        start = 8 + int.from_bytes(data[:8], "little")
        for name, entry in json.loads(data[8:start]).items():
            if name != "__metadata__":
                begin, end = entry["data_offsets"]
                tensors[name] = data[start + begin : start + end]
    return tensors


def all_files(folder):
    return {path.relative_to(folder): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


@pytest.fixture(scope="module")
def report(tmp_path_factory):
    return synthesise("tiny", tmp_path_factory.mktemp("synth") / "set", shard_size=SHARD, workers=3)


@pytest.mark.parametrize("name", ["base", "code", "tool", "memory"])
def test_every_checkpoint_opens_with_the_safetensors_library(report, name):
    folder = report.base.parent / name
    index = json.loads((folder / "model.safetensors.index.json").read_text())["weight_map"]
    seen = {}
    for file in sorted(set(index.values())):
        with safe_open(folder / file, framework="numpy") as shard:
            assert shard.metadata() == {"format": "pt"}
            seen |= {key: tuple(shard.get_slice(key).get_shape()) for key in shard.keys()}  # noqa: SIM118
    assert seen == {spec.name: spec.shape for spec in SHAPES["tiny"].tensors()}
    assert set(seen) == set(index)


def test_each_folder_has_its_configs_and_says_that_it_is_synthetic(report):
    for folder in (report.base, *report.agents.values()):
        assert json.loads((folder / "config.json").read_text()) == SHAPES["tiny"].config
        assert json.loads((folder / "generation_config.json").read_text()) == SHAPES["tiny"].generation
        assert "Synthetic" in (folder / "README.md").read_text()


def test_densities_are_near_those_asked_and_counted_exactly(report):
    base = np.frombuffer(b"".join(raw_tensors(report.base).values()), np.uint16)
    for name, asked in {"code": 0.032, "tool": 0.462, "memory": 0.543}.items():
        agent = np.frombuffer(b"".join(raw_tensors(report.agents[name]).values()), np.uint16)
        assert report.changed[name] == np.count_nonzero(agent != base)
        assert report.changed[name] / report.elements == pytest.approx(asked, abs=0.005)


def test_workers_do_not_change_a_byte(report, tmp_path):
    synthesise("tiny", tmp_path / "set", shard_size=SHARD, workers=1)
    assert all_files(tmp_path / "set") == all_files(report.base.parent)


@pytest.mark.parametrize("shard_size", [4096, 5_000_000_000])
def test_the_shard_size_does_not_change_a_tensor(report, tmp_path, shard_size):
    other = synthesise("tiny", tmp_path / "set", shard_size=shard_size)
    assert other.shards != report.shards
    for mine, yours in zip((report.base, *report.agents.values()), (other.base, *other.agents.values()), strict=True):
        assert raw_tensors(mine) == raw_tensors(yours)


def test_every_piece_of_a_tensor_lies_where_it_belongs(monkeypatch, tmp_path):
    monkeypatch.setattr(write, "RUN", 5000)
    monkeypatch.setattr(numbers, "RUN", 5000)
    report = synthesise("tiny", tmp_path / "set", agents=1, densities=[0.0], workers=3)
    for spec in SHAPES["tiny"].tensors():
        expected = b"".join(base_numbers(piece, 0).tobytes() for piece in write.blocks_of([spec]))
        assert raw_tensors(report.base)[spec.name] == raw_tensors(report.agents["code"])[spec.name] == expected


def test_further_agents_are_numbered_and_leave_the_first_as_they_are(report, tmp_path):
    more = synthesise("tiny", tmp_path / "set", agents=5, shard_size=SHARD)
    assert list(more.densities.items())[3:] == [("agent4", 0.032), ("agent5", 0.462)]
    assert raw_tensors(more.agents["tool"]) == raw_tensors(report.agents["tool"])
    assert raw_tensors(more.agents["agent4"]) != raw_tensors(more.agents["code"])


def test_another_seed_gives_other_numbers(report, tmp_path):
    other = synthesise("tiny", tmp_path / "set", agents=1, seed=1)
    assert raw_tensors(other.base) != raw_tensors(report.base)


def test_progress_adds_up_to_the_bytes_of_all_tensors(tmp_path):
    steps = []
    report = synthesise("tiny", tmp_path / "set", agents=1, progress=steps.append)
    assert sum(steps) == 2 * 2 * report.elements


def test_an_empty_folder_is_taken_and_nothing_lies_beside_it(tmp_path):
    (tmp_path / "set").mkdir()
    synthesise("tiny", tmp_path / "set", agents=1)
    assert sorted(path.name for path in (tmp_path / "set").iterdir()) == ["base", "code"]
    assert [path.name for path in tmp_path.iterdir()] == ["set"]


def test_a_mount_point_is_filled_from_inside(monkeypatch, tmp_path):
    (tmp_path / "set").mkdir()
    monkeypatch.setattr("pathlib.Path.is_mount", lambda path: path.name == "set")
    synthesise("tiny", tmp_path / "set", agents=1)
    assert sorted(path.name for path in (tmp_path / "set").iterdir()) == ["base", "code"]


def test_a_folder_that_is_not_empty_is_refused_and_left_alone(tmp_path):
    (tmp_path / "set").mkdir()
    (tmp_path / "set" / "mine.txt").write_text("mine")
    with pytest.raises(OutputError, match=r"not empty\. Remove it, or choose another"):
        synthesise("tiny", tmp_path / "set")
    assert [path.name for path in (tmp_path / "set").iterdir()] == ["mine.txt"]


def test_a_file_in_the_way_is_refused(tmp_path):
    (tmp_path / "set").write_text("mine")
    with pytest.raises(OutputError, match="is a file"):
        synthesise("tiny", tmp_path / "set")


def test_a_full_disk_is_told_before_anything_is_written(monkeypatch, tmp_path):
    usage = shutil.disk_usage(tmp_path)._replace(free=1000)
    monkeypatch.setattr(write.shutil, "disk_usage", lambda _: usage)
    with pytest.raises(OutputError, match=r"7,8\d\d,\d{3} bytes are needed, 1,000 are free"):
        synthesise("tiny", tmp_path / "set", agents=1)
    assert list(tmp_path.iterdir()) == []


def test_a_write_that_fails_in_a_thread_leaves_nothing(monkeypatch, tmp_path):
    def fail(fd, buffer, offset):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(write, "write_from", fail)
    with pytest.raises(OutputError, match="No space left on device"):
        synthesise("tiny", tmp_path / "set", workers=3)
    assert list(tmp_path.iterdir()) == []


def test_what_a_killed_run_left_is_thrown_away(report, tmp_path):
    left = tmp_path / ".set.agentmerge"
    left.mkdir()
    (left / ".journal.jsonl").write_text(json.dumps(write.IDENTITY) + "\n")
    (left / "base").mkdir()
    (left / "base" / "half.safetensors").write_bytes(b"half")
    synthesise("tiny", tmp_path / "set", shard_size=SHARD)
    assert all_files(tmp_path / "set") == all_files(report.base.parent)
    assert [path.name for path in tmp_path.iterdir()] == ["set"]


def test_an_unfinished_merge_in_the_same_place_is_left_alone(tmp_path):
    left = tmp_path / ".set.agentmerge"
    left.mkdir()
    (left / ".journal.jsonl").write_text('{"recipe":1}\n')
    (left / "model.safetensors.partial").write_bytes(b"half")
    before = all_files(tmp_path)
    with pytest.raises(OutputError, match="holds an unfinished merge"):
        synthesise("tiny", tmp_path / "set", agents=1)
    assert all_files(tmp_path) == before


def test_files_that_appear_meanwhile_are_not_replaced(tmp_path):
    def intrude(nbytes):
        (tmp_path / "set").mkdir(exist_ok=True)
        (tmp_path / "set" / "mine.txt").write_text("mine")

    with pytest.raises(OutputError, match="not empty"):
        synthesise("tiny", tmp_path / "set", agents=1, progress=intrude)
    assert list(all_files(tmp_path)) == [(tmp_path / "set" / "mine.txt").relative_to(tmp_path)]


def test_the_first_error_ends_the_work():
    begun = []

    def work(item):
        begun.append(item)
        raise ValueError(item)

    with pytest.raises(ValueError, match="0"):
        write.run_all(work, range(10_000), 1)
    assert len(begun) <= 3


def test_work_is_drawn_a_few_items_ahead():
    drawn, done = [], []

    def items():
        for i in range(200):
            drawn.append(i)
            assert len(drawn) - len(done) <= 2 * 3 + 1
            yield i

    write.run_all(done.append, items(), 3)
    assert sorted(done) == list(range(200))


def test_an_interrupt_leaves_nothing(tmp_path):
    def interrupt(nbytes):
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        synthesise("tiny", tmp_path / "set", workers=2, progress=interrupt)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("arguments", "complaint"),
    [
        ({"shape": "qwen2.5-8b"}, r"'qwen2\.5-8b' is not a known shape\. Did you mean"),
        ({"agents": 0}, r"agents: 0, expected at least 1"),
        ({"densities": [0.5]}, r"densities: 1 given for 3 agents"),
        ({"densities": [0.1, 1.5, 0.1]}, r"densities: 1\.5 for agent 'tool', expected a share from 0 to 1"),
        ({"densities": [0.1, 0.1, float("nan")]}, r"densities: nan for agent 'memory'"),
        ({"workers": 0}, r"workers: 0, expected at least 1"),
        ({"shard_size": 0}, r"shard_size: 0, expected at least 1"),
    ],
)
def test_impossible_arguments_are_told_before_anything_is_written(tmp_path, arguments, complaint):
    with pytest.raises(RecipeError, match=complaint):
        synthesise(**{"shape": "tiny", "out": tmp_path / "set", **arguments})
    assert list(tmp_path.iterdir()) == []
